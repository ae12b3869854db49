"""The options of `octavo serve` about the responses it keeps: rows of the table in options.py, with its rules."""

from __future__ import annotations

from octavo.cli.option import Option

STORE_OPTIONS: tuple[Option, ...] = (
    Option(
        "response-store-path",
        "server",
        "path",
        "File that keeps the responses of /v1/responses over a restart; one server each. Default: they are kept in "
        "memory.",
        metavar="FILE",
    ),
    Option(
        "response-store-entries",
        "server",
        "whole",
        "Most responses kept; the oldest of whoever has most go first. 0 keeps none.",
    ),
    Option(
        "response-store-bytes",
        "server",
        "size",
        "Most bytes they hold, answers and input together, such as 1GiB.",
    ),
)
