"""`--config FILE`: the options of the command line in a TOML or JSON file, under the same names.

The command line wins over the file. Refuses what it does not know, with the nearest name, and a value of the wrong
type, with the key: nothing in a file is ignored. Reads at most 1 MiB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from octavo.cli.not_here import NOT_HERE
from octavo.cli.option import Option
from octavo.cli.options import OPTIONS
from octavo.cli.sizes import parse_count, parse_size
from octavo.errors import ConfigError

MAX_CONFIG_BYTES = 1 << 20
MODEL = Option("model", "engine", "text", "The model to serve.")

_WANTED = {
    "whole": "a whole number",
    "real": "a number",
    "text": "text in quotes",
    "texts": "text in quotes, or a list of them",
    "path": "text in quotes",
    "size": 'bytes, or text such as "1GiB"',
    "count": 'a whole number, or text such as "32k"',
    "choice": "text in quotes",
    "switch": "true or false",
}


def read_config_file(path: Path) -> dict[str, Any]:
    """Values by parameter name (`Option.param`). Raises ConfigError naming the file and the key at fault."""
    table = _parse(path)
    known = {option.name: option for option in (MODEL, *OPTIONS)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        option = known.get(name)
        if option is None:
            raise ConfigError(f"{path}: {_unknown(key, known)}", param=key)
        if option.param in values:
            raise ConfigError(f"{path}: {key} is given twice; keep one", param=key)
        values[option.param] = _checked(path, key, option, value)
    return values


def _unknown(key: str, known: Mapping[str, Option]) -> str:
    name = key.replace("_", "-")
    if name in NOT_HERE:
        return f"{key} is an option of vLLM that octavo does not have: {NOT_HERE[name]}"
    near = get_close_matches(name, known, n=1)
    return f"there is no option {key!r}" + (f"; did you mean {near[0]}?" if near else "")


def _parse(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", param="config") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"{path} is larger than {MAX_CONFIG_BYTES} bytes; is it a configuration file?", param="config"
        )
    try:
        text = data.decode()
        if path.suffix == ".json":
            table = json.loads(text)
        else:
            import tomllib

            table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise ConfigError(f"{path} is not {kind}: {' '.join(str(error).split())}", param="config") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path} must hold a table of names and values", param="config")
    return table


def _checked(path: Path, key: str, option: Option, value: object) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    text = isinstance(value, str)
    fits = {
        "whole": whole,
        "real": whole or isinstance(value, float),
        "text": text,
        "texts": text or (isinstance(value, list) and all(isinstance(item, str) for item in value)),
        "path": text,
        "size": whole or text,
        "count": whole or text,
        "choice": text,
        "switch": isinstance(value, bool),
    }[option.kind]
    if not fits:
        raise ConfigError(f"{path}: {key} is of the wrong kind; it must be {_WANTED[option.kind]}", param=key)
    if option.kind == "choice" and value not in option.choices:
        raise ConfigError(f"{path}: {key} is {value!r}; it may be {', '.join(option.choices)}", param=key)
    if option.kind in ("size", "count") and isinstance(value, str):
        try:
            return parse_size(value) if option.kind == "size" else parse_count(value)
        except ConfigError as error:
            raise ConfigError(f"{path}: {key}: {error.message}", param=key) from error
    if option.kind == "texts":
        return [value] if isinstance(value, str) else value
    return value
