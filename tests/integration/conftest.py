"""The tests here start processes."""

from support.children import children_find_octavo

__all__ = ["children_find_octavo"]
