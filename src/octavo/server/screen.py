"""What a start shows people once the model is loaded: one screen of what was decided, on stderr.

Refuses to print keys or prompts.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from octavo import __version__
from octavo.engine.info import EngineInfo
from octavo.server.config import ServerConfig

_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def print_screen(console: Console, info: EngineInfo, config: ServerConfig, port: int, ready_seconds: float) -> None:
    """The one screen of a start."""
    names = config.served_model_names or (info.model,)
    host = f"[{config.host}]" if ":" in config.host else config.host
    console.print(Text(f"octavo {__version__}", style="bold"))
    for label, value in _rows(info, names):
        console.print(Text.assemble((f"{label:<9}", "dim"), value), soft_wrap=True)
    for warning in (*info.warnings, *config_warnings(config)):
        console.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    scheme = "http" if config.ssl_certfile is None else "https"
    console.print(
        Text(f"ready in {ready_seconds:.1f} s on {scheme}://{host}:{port}/v1", style="bold green"), soft_wrap=True
    )


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
        ("fits", f"{tokens:,} tokens, or {_count(whole)} sequences of {info.max_model_len:,} tokens (max_model_len)"),
        (
            "steps",
            f"up to {info.max_num_seqs} sequences, {info.max_num_batched_tokens} tokens; prefix caching {caching}",
        ),
    ]


def _count(number: float) -> str:
    """64.0 as 64, 63.87 as 63.9: a whole number needs no decimal."""
    return f"{number:,.1f}".removesuffix(".0")


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
