"""Refusals in the words of the route that was asked: chat bounds them all, and names its own fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from octavo.errors import BadRequest


class FieldNames:
    """`here`: what chat's fields are called on the route."""

    def __init__(self, here: Mapping[str, str]) -> None:
        self._here = here
        self._chats = re.compile(r"\b(?:" + "|".join(map(re.escape, here)) + r")\b")

    @contextmanager
    def said(self) -> Iterator[None]:
        """What is refused within names the fields so, in its message and as its param (the outermost field)."""
        try:
            yield
        except BadRequest as error:
            param = error.param and self._here.get(error.param, error.param).partition(".")[0]
            message = self._chats.sub(lambda match: self._here[match.group()], error.message)
            raise BadRequest(message, param=param, code=error.code) from None
