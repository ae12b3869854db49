"""Reads numbers out of a model's configuration, each with its bounds, and refuses what no model can mean.

A configuration comes from a file that may be damaged or hostile: nothing is allocated from a number that did not
pass here. Every refusal is a ModelFileError that names the field, its value and the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from octavo.errors import ModelFileError, short_number

MAX_WIDTH = 2**17  # columns of a hidden state
MAX_LAYERS = 2**10
MAX_HEADS = 2**12
MAX_HEAD_DIM = 2**10
MAX_FFN_WIDTH = 2**20
MAX_VOCAB = 2**22
MAX_CONTEXT = 2**27


class Fields:
    """One mapping; `prefix` stands before every name (GGUF: "llama."), `source` names the file's part in messages."""

    def __init__(self, values: Mapping[str, object], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self.prefix = prefix

    def has(self, name: str) -> bool:
        """False also where the value is null."""
        return self.values.get(self.prefix + name) is not None

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high]; `default` where the field is absent or null."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refusal(name, value, "it must be a whole number")
        if not low <= value <= high:
            raise self.refusal(name, value, f"it must be from {low} to {high}")
        return value

    def real(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in [low, high]."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(name, value, "it must be a number")
        if not low <= value <= high or not math.isfinite(value):
            raise self.refusal(name, value, f"it must be from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.refusal(name, value, "it must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.refusal(name, value, "it must be a string")
        return value

    def nested(self, name: str) -> Fields | None:
        """The mapping under `name`; None where the field is absent or null."""
        value = self.values.get(self.prefix + name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refusal(name, value, "it must be a mapping")
        return Fields(value, f"{self.source}: {name}")

    def length(self, name: str, low: int, high: int) -> int | None:
        """How many entries the list under `name` has; None where it is absent."""
        value = self.values.get(self.prefix + name)
        if value is None:
            return None
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise self.refusal(name, value, "it must be a list")
        if not low <= len(value) <= high:
            raise ModelFileError(
                f"{self.source}: {self.prefix}{name} has {len(value)} entries; there must be from {low} to {high}"
            )
        return len(value)

    def divides(self, part: str, part_value: int, whole: str, whole_value: int) -> None:
        """Refuses unless `part` divides `whole`."""
        if whole_value % part_value:
            raise ModelFileError(
                f"{self.source}: {self.prefix}{whole} is {whole_value}, which {self.prefix}{part} "
                f"({part_value}) does not divide"
            )

    def refusal(self, name: str, value: object, rule: str) -> ModelFileError:
        return ModelFileError(f"{self.source}: {self.prefix}{name} is {_short(value)}; {rule}")

    def _get(self, name: str, default: object) -> object:
        value = self.values.get(self.prefix + name)
        if value is None:
            if default is None:
                raise ModelFileError(f"{self.source}: {self.prefix}{name} is missing")
            return default
        return value


def _short(value: object) -> str:
    """A value from a file as text of bounded length."""
    if isinstance(value, int):
        return short_number(value)
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return f"a {type(value).__name__}"
    text = repr(value[:60]) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
