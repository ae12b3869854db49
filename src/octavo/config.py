"""Configuration: one frozen object, built once from command line, file and environment, patched by nobody.

The only module that reads environment variables. `None` means "decided when the model is known"; what was decided
stands in `octavo.engine.info.EngineInfo`, never here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from octavo.errors import ConfigError
from octavo.tier_spec import parse_tiers

DEFAULT_MODEL = "smollm2"
# An executor takes memory, or threads, for each of these at its start: beyond, it would not start but hang or die.
MAX_BLOCK_SIZE = 2**16
MAX_NUM_SEQS = 2**16
MAX_NUM_BATCHED_TOKENS = 2**20
MAX_NUM_THREADS = 1024
MAX_IDLE_SECONDS = 1e9  # thirty years: a larger number is a mistake
Dtype = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["w8a8"]
KVDtype = Literal["auto", "bfloat16", "float32", "int8"]
ExecutorName = Literal["auto", "cpu", "reference", "fake"]
KVTierPolicy = Literal["auto", "swap", "recompute"]
SchedulingPolicy = Literal["fcfs", "priority", "fair"]
PreemptionPolicyName = Literal["newest", "lowest-priority", "least-recompute"]
MAX_TARGET_ITL_MS = 1e6
MAX_CLIENT_WEIGHT = 1e6


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What one engine is to be. Raises ConfigError on construction, naming the option."""

    model: str = DEFAULT_MODEL  # alias, path to a .gguf, path to a folder, or hub id owner/name[:file]
    executor: ExecutorName = "auto"  # auto: cpu, or fake for the model "fake"
    dtype: Dtype = "auto"  # form of weights the file holds unquantised; auto: bfloat16 unless the file is float32
    quantization: Quantization | None = (
        None  # what every linear weight is rounded to at load; None: as the file holds it
    )
    kv_cache_dtype: KVDtype = "auto"  # auto: bfloat16; int8: with a scale a token and KV head
    block_size: int = 16  # tokens a block; the cpu executor takes multiples of 16
    max_model_len: int | None = None  # tokens of prompt and answer together
    max_num_seqs: int = 64  # sequences in one step
    max_num_batched_tokens: int = 512  # tokens in one step
    num_gpu_blocks_override: int | None = None  # vLLM's name: blocks in the pool, whatever the memory says
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.5  # on a CPU: the share of the memory available to this process KV may grow to
    enable_prefix_caching: bool = True
    kv_cache_idle_seconds: float = 600.0  # cached blocks that nobody used for so long give their memory back; 0: never
    kv_tiers: tuple[str, ...] = ()  # where blocks that leave memory go: "ram:SIZE", "disk:PATH,SIZE", or both so
    kv_tier_policy: KVTierPolicy = "auto"  # auto: back from a tier where that costs less than computing again
    watermark: float = 0.01  # share of the pool kept free when a new request is admitted
    seed: int = 0  # of the engine's own generator, from which requests without a seed draw one
    num_threads: int | None = None  # None: physical cores in the affinity mask, capped by the cgroup's quota
    isa: str | None = None  # forced instruction set (OCTAVO_ISA); None: best
    max_queue: int = 512  # requests waiting before 429
    max_queue_tokens: int | None = None  # of their prompts before 429; one request may always wait; None: any number
    scheduling_policy: SchedulingPolicy = "fcfs"  # who goes first
    client_weights: tuple[str, ...] = ()  # "NAME=WEIGHT" for the fair policy; a client not named has 1
    preemption_policy: PreemptionPolicyName = "newest"  # who gives way when blocks are short
    target_itl_ms: float | None = None  # how long a step with decoding rows should take at most

    def __post_init__(self) -> None:
        _count("block_size", self.block_size, MAX_BLOCK_SIZE)
        _count("max_num_seqs", self.max_num_seqs, MAX_NUM_SEQS)
        _count("max_num_batched_tokens", self.max_num_batched_tokens, MAX_NUM_BATCHED_TOKENS)
        _count("max_queue", self.max_queue)
        for name in ("max_model_len", "num_gpu_blocks_override", "kv_cache_memory_bytes", "max_queue_tokens"):
            if getattr(self, name) is not None:
                _count(name, getattr(self, name))
        if self.num_threads is not None:
            _count("num_threads", self.num_threads, MAX_NUM_THREADS)
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ConfigError(f"seed is {self.seed!r}; it must be a whole number", param="seed")
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model is {self.model!r}; it must be a name or a path", param="model")
        if not isinstance(self.enable_prefix_caching, bool):
            raise ConfigError(
                f"enable_prefix_caching is {self.enable_prefix_caching!r}; it must be true or false",
                param="enable_prefix_caching",
            )
        if not _is_real(self.gpu_memory_utilization) or not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization!r}; it must be above 0, up to 1",
                param="gpu_memory_utilization",
            )
        if not _is_real(self.watermark) or not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark is {self.watermark!r}; it must be from 0 to below 1", param="watermark")
        if not _is_real(self.kv_cache_idle_seconds) or not 0.0 <= self.kv_cache_idle_seconds <= MAX_IDLE_SECONDS:
            raise ConfigError(
                f"kv_cache_idle_seconds is {self.kv_cache_idle_seconds!r}; it must be from 0, which means never, to "
                f"{MAX_IDLE_SECONDS:.0f}",
                param="kv_cache_idle_seconds",
            )
        for name, allowed in (
            ("executor", ("auto", "cpu", "reference", "fake")),
            ("dtype", ("auto", "float32", "bfloat16")),
            ("kv_cache_dtype", ("auto", "bfloat16", "float32", "int8")),
            ("kv_tier_policy", ("auto", "swap", "recompute")),
            ("scheduling_policy", ("fcfs", "priority", "fair")),
            ("preemption_policy", ("newest", "lowest-priority", "least-recompute")),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it may be {', '.join(allowed)}", param=name)
        if self.quantization not in (None, "w8a8"):
            raise ConfigError(f"quantization is {self.quantization!r}; it may be w8a8", param="quantization")
        self._check_tiers()
        self._check_scheduling()

    def _check_scheduling(self) -> None:
        target = self.target_itl_ms
        if target is not None and not (_is_real(target) and 0.0 < target <= MAX_TARGET_ITL_MS):
            raise ConfigError(
                f"target_itl_ms is {target!r}; it must be above 0, up to {MAX_TARGET_ITL_MS:.0f} milliseconds",
                param="target_itl_ms",
            )
        if parse_client_weights(self.client_weights) and self.scheduling_policy != "fair":
            raise ConfigError(
                f"client_weight is for the scheduling policy fair, and it is {self.scheduling_policy}; "
                "start with --scheduling-policy fair or leave the weights out",
                param="client_weight",
            )

    def _check_tiers(self) -> None:
        if not isinstance(self.kv_tiers, tuple) or not all(isinstance(text, str) for text in self.kv_tiers):
            raise ConfigError(f"kv_tiers is {self.kv_tiers!r}; it must be a list of texts", param="kv_tier")
        if parse_tiers(self.kv_tiers) and not self.enable_prefix_caching:
            raise ConfigError(
                "kv_tier needs the prefix cache, which names the blocks; leave out one of kv_tier and "
                "no-enable-prefix-caching",
                param="kv_tier",
            )

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> EngineConfig:
        """Builds from names and values; a misspelt name is an error that suggests the nearest."""
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"there is no option {name!r}{hint}", param=name)
        for name in ("kv_tiers", "client_weights"):
            if isinstance(listed := options.get(name), list):
                options = {**options, name: tuple(listed)}
        return cls(**options)


def parse_client_weights(texts: tuple[str, ...]) -> dict[str, float]:
    """Weights by client, from "NAME=WEIGHT" each; a name may hold "=". Raises ConfigError."""
    if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"client_weights is {texts!r}; it must be a list of texts", param="client_weight")
    weights: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not name or not 0.0 < weight <= MAX_CLIENT_WEIGHT:
            raise ConfigError(
                f"client_weight is {text!r}; write NAME=WEIGHT with a weight above 0, up to {MAX_CLIENT_WEIGHT:.0f}, "
                "such as batch=0.5",
                param="client_weight",
            )
        if name in weights:
            raise ConfigError(f"client_weight names {name!r} twice; keep one", param="client_weight")
        weights[name] = weight
    return weights


def octavo_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where models are kept: OCTAVO_HOME, else ~/.cache/octavo."""
    return Path(environ.get("OCTAVO_HOME") or Path.home() / ".cache" / "octavo")


def forced_isa(environ: Mapping[str, str] = os.environ) -> str | None:
    """OCTAVO_ISA: the instruction set to use whatever the processor offers."""
    return environ.get("OCTAVO_ISA") or None


def environment_api_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """OCTAVO_API_KEY: the key clients must send, kept out of the command line because arguments show in ps. Raises
    ConfigError where it is empty: a secret that got lost on its way must not open the server."""
    return _environment_key("OCTAVO_API_KEY", environ)


def environment_admin_api_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """OCTAVO_ADMIN_API_KEY: the administrator's key, for the same reason."""
    return _environment_key("OCTAVO_ADMIN_API_KEY", environ)


def _environment_key(name: str, environ: Mapping[str, str]) -> str | None:
    key = environ.get(name)
    if key == "":
        raise ConfigError(f"{name} is set, but empty; give it a key, or unset it", param=name)
    return key


def forget_environment_keys(environ: MutableMapping[str, str] = os.environ) -> None:
    """Once they were read: processes that are started from here on need not know them."""
    for name in ("OCTAVO_API_KEY", "OCTAVO_ADMIN_API_KEY"):
        environ.pop(name, None)


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(name: str, value: object, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1", param=name)
    if most is not None and value > most:
        raise ConfigError(f"{name} is {value}; it must be at most {most}", param=name)
