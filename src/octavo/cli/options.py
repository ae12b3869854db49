"""The options of `octavo serve` and its sisters, declared once: name, owner, kind, words. Those of keys, TLS and CORS
stand in access_options.py, those of stored responses in store_options.py; those of the limits are made from
the limits themselves. What vLLM has and octavo does not stands in not_here.py.

One row of `OPTIONS` gives the command-line option, the key of the configuration file, the field of EngineConfig or
ServerConfig it sets, and its line in the docs. Names are vLLM's where vLLM has one. Refuses to hold a default: a value
that nobody gave is left out, and the configuration's own default stands. Bounds are the configuration's too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from octavo.cli.access_options import ACCESS_OPTIONS
from octavo.cli.limit_options import LIMIT_OPTIONS, limit_default
from octavo.cli.option import Option, Owner
from octavo.cli.sizes import parse_count, parse_size
from octavo.cli.store_options import STORE_OPTIONS
from octavo.config import DEFAULT_MODEL, EngineConfig, forced_isa
from octavo.errors import ConfigError
from octavo.log_lines import LOG_FORMATS

if TYPE_CHECKING:
    from octavo.server.config import ServerConfig

Command = TypeVar("Command", bound=Callable[..., object])

OPTIONS: tuple[Option, ...] = (
    Option("host", "server", "text", "Address to listen on."),
    Option("port", "server", "whole", "Port to listen on; 0 takes a free one."),
    Option(
        "served-model-name",
        "server",
        "texts",
        "Name clients call the model by; give it again for more names. Default: the model as given.",
        field="served_model_names",
        metavar="NAME",
    ),
    *ACCESS_OPTIONS,
    Option("explain-cache", "server", "switch", "Answers say why their prompts hit or missed the prefix cache."),
    Option(
        "chat-template",
        "server",
        "path",
        "File with a chat template (jinja) instead of the model's own.",
        metavar="FILE",
    ),
    Option(
        "tool-call-parser",
        "server",
        "text",
        "How the model writes tool calls: hermes, llama3_json, pythonic, mistral, granite, phi4_mini_json, "
        "deepseek_v3, deepseek_v31, qwen3_coder or openai. Default: as its chat template says.",
        metavar="NAME",
    ),
    Option(
        "reasoning-parser",
        "server",
        "text",
        "How the model marks its reasoning: deepseek_r1, qwen3, mistral, seed_oss, granite and others, or none to "
        "leave it in the answer. Default: as its chat template says.",
        metavar="NAME",
    ),
    *STORE_OPTIONS,
    Option(
        "embedding-pooling",
        "server",
        "choice",
        "What /v1/embeddings makes of a text's hidden states: the mean over all tokens, or the last token's.",
        choices=("mean", "last"),
    ),
    Option("max-model-len", "engine", "count", "Most tokens of prompt and answer together. Default: what fits."),
    Option("max-num-seqs", "engine", "whole", "Most sequences in one step."),
    Option("max-num-batched-tokens", "engine", "count", "Most tokens in one step; longer prompts are cut into chunks."),
    Option("max-queue", "engine", "whole", "Most requests waiting; one more is answered 429."),
    Option(
        "max-queue-tokens",
        "engine",
        "count",
        "Most prompt tokens waiting; a request beyond is answered 429, unless nobody waits. Default: any number.",
    ),
    Option(
        "queue-timeout-seconds",
        "server",
        "real",
        "A request that waits so long without being started is answered 503; 0: never.",
    ),
    Option(
        "request-timeout-seconds",
        "server",
        "real",
        "A request that is not done after so long is ended with an error; 0: never.",
    ),
    Option(
        "shutdown-timeout",
        "server",
        "real",
        "How many seconds requests in flight may go on after SIGTERM or SIGINT; then they end with an error.",
        field="shutdown_timeout_seconds",
    ),
    Option(
        "log-format",
        "server",
        "choice",
        "Lines on stderr as text, or as one JSON object each, with a line for each request.",
        choices=LOG_FORMATS,
    ),
    Option(
        "otlp-traces-endpoint",
        "server",
        "text",
        "URL of an OpenTelemetry collector that takes OTLP over HTTP, such as http://localhost:4318/v1/traces, for a "
        "span of each request. Needs octavo[otel].",
        metavar="URL",
    ),
    Option(
        "scheduling-policy",
        "engine",
        "choice",
        "Who goes first: in order of arrival; by the request's priority field, lower first; or whose client got least.",
        choices=("fcfs", "priority", "fair"),
    ),
    Option(
        "client-weight",
        "engine",
        "texts",
        "Share of a client under the fair policy, such as batch=0.5; give it again for more clients. NAME is the "
        "request's user field, or where keys are asked for key-NAME for one of --api-key-file and else key-HASH, as "
        "the debug record shows it. Default: 1, or the key's own.",
        field="client_weights",
        metavar="NAME=WEIGHT",
    ),
    Option(
        "preemption-policy",
        "engine",
        "choice",
        "Who gives up its blocks when they are short: the newest, the least urgent, or who costs least to bring back.",
        choices=("newest", "lowest-priority", "least-recompute"),
    ),
    Option(
        "target-itl-ms",
        "engine",
        "real",
        "Longest time between two tokens to aim at, in milliseconds: beside streams that decode, prompts are run in "
        "chunks as long as the measured cost of steps allows. Default: chunks of --max-num-batched-tokens.",
    ),
    Option("block-size", "engine", "whole", "Tokens a block of the KV cache; the cpu executor takes multiples of 16."),
    Option("num-gpu-blocks-override", "engine", "whole", "Blocks in the pool, whatever the memory says (vLLM's name)."),
    Option("kv-cache-memory-bytes", "engine", "size", "Most memory the KV cache may grow to, such as 1GiB."),
    Option(
        "gpu-memory-utilization",
        "engine",
        "real",
        "Share of the memory available to this process that the KV cache may grow to (vLLM's name, also on a CPU).",
    ),
    Option("enable-prefix-caching", "engine", "switch", "Keep the blocks of prompts for later equal prefixes."),
    Option(
        "kv-cache-idle-seconds",
        "engine",
        "real",
        "Give the memory of cached prefixes back when nobody used them for so long; 0 keeps them. When memory runs "
        "short they go sooner, oldest first.",
    ),
    Option(
        "kv-tier",
        "engine",
        "texts",
        "Where blocks that leave memory go and come back from: ram:SIZE, or disk:PATH,SIZE, which also survives a "
        "restart and may be shared by several servers. SIZE as in 64GiB. Give both, ram first, to chain them.",
        field="kv_tiers",
        metavar="TIER",
    ),
    Option(
        "kv-tier-policy",
        "engine",
        "choice",
        "Take blocks from a tier, or compute them again; auto takes what measures cheaper.",
        choices=("auto", "swap", "recompute"),
    ),
    Option(
        "kv-cache-dtype",
        "engine",
        "choice",
        "How keys and values are stored: auto is bfloat16; int8 takes half of that, with a scale a token and head.",
        choices=("auto", "bfloat16", "float32", "int8"),
    ),
    Option(
        "dtype",
        "engine",
        "choice",
        "How weights that the file holds unquantised are kept.",
        choices=("auto", "bfloat16", "float32"),
    ),
    Option(
        "quantization",
        "engine",
        "choice",
        "Round the weights of matrix products at load, whatever the file holds: w8a8 is int8 with a scale a row, and "
        "activations in int8 with a scale a token; for long prompts and many streams. Default: as in the file.",
        choices=("w8a8",),
    ),
    Option("seed", "engine", "whole", "Of the engine's generator, which draws the seed of requests without one."),
    Option(
        "threads",
        "engine",
        "whole",
        "Threads of the kernels. Default: the physical cores this process may use.",
        field="num_threads",
    ),
    Option(
        "executor",
        "engine",
        "choice",
        "What runs the model; auto is cpu, and fake for the model named fake.",
        choices=("auto", "cpu", "reference", "fake"),
    ),
    Option("isa", "engine", "text", "Force an instruction set: avx512, avx2, neon, plain. Also OCTAVO_ISA."),
    Option(
        "enable-auto-tool-choice",
        "nobody",
        "switch",
        "Does nothing here: tool calls are always read. Taken so that vLLM's command lines work.",
    ),
    Option("enforce-eager", "nobody", "switch", "Does nothing here; taken so that vLLM's command lines work."),
    Option("disable-log-stats", "nobody", "switch", "Does nothing here; taken so that vLLM's command lines work."),
    *LIMIT_OPTIONS,
)

SERVER_DEFAULTS: Mapping[str, object] = {
    "host": "127.0.0.1",
    "port": 8000,
    "queue-timeout-seconds": 60.0,
    "request-timeout-seconds": 0.0,
    "response-store-entries": 4096,
    "response-store-bytes": 64 * 2**20,
    "shutdown-timeout": 30.0,
    "log-format": "text",
    "embedding-pooling": "mean",
}  # copied, so that the help needs no server; a test compares

# What `chat`, `run` and `bench` share: the engine in this process, one user. A tier keeps what they computed for the
# next time they are started; `bench` measures computing, so it takes none.
LOCAL_OPTIONS = (
    "max-model-len",
    "block-size",
    "kv-cache-memory-bytes",
    "kv-tier",
    "kv-tier-policy",
    "kv-cache-dtype",
    "dtype",
    "quantization",
    "threads",
    "executor",
    "isa",
)


def option_named(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)


class Written(click.ParamType[int]):
    """A number as people write it, read by `parse`."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else self._parse(str(value))
        except ConfigError as error:
            self.fail(error.message, param, ctx)


class Words(click.ParamType[str]):
    """Text for a model. Refuses what the shell passed on that is no UTF-8."""

    name = "text"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            self.fail(f"it is not UTF-8 (after {error.start} characters); convert it first", param, ctx)
        return text


WORDS = Words()


def with_options(names: Iterable[str]) -> Callable[[Command], Command]:
    """Decorates a command with options of the table; it receives them as keywords, None (or ()) where not given."""

    def decorate(command: Command) -> Command:
        for name in reversed(tuple(names)):
            command = _click_option(option_named(name))(command)
        return command

    return decorate


def _click_option(option: Option) -> Callable[[Command], Command]:
    flags = f"--{option.name}"
    attributes: dict[str, Any] = {"default": None, "help": help_of(option), "metavar": option.metavar}
    match option.kind:
        case "whole":
            attributes["type"] = int
        case "real":
            attributes["type"] = float
        case "size":
            attributes["type"] = Written("size", parse_size)
        case "count":
            attributes["type"] = Written("tokens", parse_count)
        case "choice":
            attributes["type"] = click.Choice(option.choices)
        case "path":
            attributes["type"] = click.Path(path_type=Path)
        case "texts":
            attributes |= {"multiple": True, "default": ()}
        case "switch" if option.owner == "nobody":
            attributes |= {"is_flag": True, "default": False}
        case "switch":
            flags += f"/--no-{option.name}"
        case "text":
            pass
    return click.option(flags, option.param, **attributes)


def help_of(option: Option) -> str:
    """The option's words with the configuration's own default behind them."""
    default = _default_of(option)
    if default in (None, MISSING, ()) or option.owner == "nobody":
        return option.help
    if isinstance(default, bool):
        return f"{option.help}  [default: {'on' if default else 'off'}]"
    return f"{option.help}  [default: {default}]"


def _default_of(option: Option) -> object:
    if option.owner == "server":
        return SERVER_DEFAULTS.get(option.name)
    if option.owner == "limits":
        return limit_default(option)
    return next((field.default for field in fields(EngineConfig) if field.name == option.param), None)


def engine_config(model: str | None, values: Mapping[str, Any], **overrides: Any) -> EngineConfig:
    """The engine's part of what a command received. `overrides` stand where the user gave nothing."""
    given = _given(values, "engine")
    if "isa" not in given and (isa := forced_isa()) is not None:
        given["isa"] = isa
    return EngineConfig.from_options({"model": model or DEFAULT_MODEL, **overrides, **given})


def server_config(values: Mapping[str, Any]) -> ServerConfig:
    """The server's part of what a command received."""
    from octavo.server.config import ServerConfig
    from octavo.server.limits import Limits

    return ServerConfig(**_given(values, "server"), limits=Limits(**_given(values, "limits")))


def _given(values: Mapping[str, Any], owner: Owner) -> dict[str, Any]:
    owned = {option.param for option in OPTIONS if option.owner == owner}
    return {name: value for name, value in values.items() if name in owned and value is not None and value != ()}
