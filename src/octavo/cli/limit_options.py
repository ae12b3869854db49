"""An option for every limit, made from `octavo.server.limits`, so that none is forgotten and none is told twice."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from octavo.cli.option import Kind, Option
from octavo.server.limits import limit_fields


def _kind(name: str) -> Kind:
    if name.endswith("_bytes"):
        return "size"
    if name.endswith("_seconds"):
        return "real"
    return "count" if name.endswith("_tokens") else "whole"


def _option(field: Field[Any]) -> Option:
    return Option(field.name.replace("_", "-"), "limits", _kind(field.name), field.metadata["help"])


LIMIT_OPTIONS = tuple(_option(field) for field in limit_fields())
_DEFAULTS = {field.name: field.default for field in limit_fields()}


def limit_default(option: Option) -> object:
    return _DEFAULTS[option.param]
