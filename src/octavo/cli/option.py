"""One option of the command line: a row of the tables in options.py and its sisters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Owner = Literal["engine", "server", "limits", "nobody"]
Kind = Literal["whole", "real", "text", "texts", "path", "size", "count", "choice", "switch"]


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # without the dashes
    owner: Owner
    kind: Kind
    help: str
    field: str = ""  # of the owner's configuration; "": the name with underscores
    choices: tuple[str, ...] = ()
    metavar: str | None = None

    @property
    def param(self) -> str:
        return self.field or self.name.replace("-", "_")
