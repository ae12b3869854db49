"""What the server says of its own life on stderr: one screen of what was decided once the model is loaded, and its end.

Refuses to print keys or prompts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from octavo import __version__
from octavo.engine.info import EngineInfo
from octavo.engine.progress import LoadingBar
from octavo.server.config import ServerConfig

STOPPING = "stopping: requests in flight may finish; a second signal stops at once"
_log = logging.getLogger("octavo.server")
_UNITS = ("bytes", "KB", "MB", "GB", "TB")


class Screen:
    """What people see in a terminal or a plain log. One that cannot be written (a full disk) ends no server."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    @contextlib.contextmanager
    def loading(self) -> Iterator[Callable[[str, float], None]]:
        """Gives what is to be told the stage of the start, and the fraction of it that is done."""
        with LoadingBar() as bar:
            yield bar.show

    def ready(self, info: EngineInfo, config: ServerConfig, port: int, seconds: float) -> None:
        """The one screen of a start."""
        names = config.served_model_names or (info.model,)
        self._print(Text(f"octavo {__version__}", style="bold"))
        for label, value in _rows(info, names):
            self._print(Text.assemble((f"{label:<9}", "dim"), value), soft_wrap=True)
        for warning in (*info.warnings, *config_warnings(config)):
            self._print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
        self._print(Text(_ready_line(config, port, seconds), style="bold green"), soft_wrap=True)

    def stopping(self) -> None:
        self._print(STOPPING)

    def failed(self, text: str) -> None:
        self._print(f"octavo: error: {text}", style="red", markup=False, soft_wrap=True)

    def _print(self, text: Text | str, **how: Any) -> None:
        with contextlib.suppress(OSError):
            self._console.print(text, **how)


class JsonScreen:
    """The same as lines of a log that programs read."""

    @contextlib.contextmanager
    def loading(self) -> Iterator[Callable[[str, float], None]]:
        yield lambda _stage, _fraction: None

    def ready(self, info: EngineInfo, config: ServerConfig, port: int, seconds: float) -> None:
        for warning in (*info.warnings, *config_warnings(config)):
            _log.warning("%s", warning)
        names = config.served_model_names or (info.model,)
        rows = {label.replace(" ", "_").lower(): value for label, value in _rows(info, names)}
        fields = {"version": __version__, "port": port, **rows}
        _log.info("%s", _ready_line(config, port, seconds), extra={"fields": fields})

    def stopping(self) -> None:
        _log.info("%s", STOPPING)

    def failed(self, text: str) -> None:
        _log.critical("%s", text)


def screen_for(config: ServerConfig) -> Screen | JsonScreen:
    return JsonScreen() if config.log_format == "json" else Screen()


def _ready_line(config: ServerConfig, port: int, seconds: float) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "http" if config.ssl_certfile is None else "https"
    return f"ready in {seconds:.1f} s on {scheme}://{host}:{port}/v1"


def _rows(info: EngineInfo, names: tuple[str, ...]) -> list[tuple[str, str]]:
    tokens, whole = info.kv_cache_tokens, info.num_full_length_sequences
    caching = "on" if info.enable_prefix_caching else "off"
    return [
        ("model", f"{', '.join(names)} ({info.architecture})"),
        ("weights", f"{size(info.weight_bytes)}, {info.weight_form}"),
        (
            "runs on",
            f"{info.executor}, {info.isa}, {info.num_threads} {'thread' if info.num_threads == 1 else 'threads'}",
        ),
        (
            "KV cache",
            f"up to {size(info.kv_cache_bytes)}, {info.kv_dtype}: {info.num_blocks:,} blocks of {info.block_size}",
        ),
        ("fits", f"{tokens:,} tokens, or {_sequences(whole)} of {info.max_model_len:,} tokens (max_model_len)"),
        (
            "steps",
            f"up to {_sequences(info.max_num_seqs)}, {info.max_num_batched_tokens} tokens; prefix caching {caching}",
        ),
    ]


def _sequences(number: float) -> str:
    """64.0 as 64, 63.87 as 63.9: a whole number needs no decimal; and one needs no plural."""
    words = f"{number:,.1f}".removesuffix(".0")
    return f"{words} {'sequence' if words == '1' else 'sequences'}"


def config_warnings(config: ServerConfig) -> tuple[str, ...]:
    if config.is_loopback:
        return ()
    if not config.api_keys and config.api_key_file is None:
        return (f"anybody who reaches {config.host} can use this server: no --api-key was given",)
    return ()


def size(num_bytes: float) -> str:
    """98,362,432 as 98.4 MB."""
    for unit in _UNITS[:-1]:
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} {_UNITS[-1]}"
