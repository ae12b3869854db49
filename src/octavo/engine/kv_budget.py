"""How many blocks the pool gets and how long a sequence may be: one pure function of options, model and memory.

Refuses to guess silently: where the context is shortened there is a line that says so, and where what was asked
cannot be had there is a ConfigError that names the largest that can. Invariant of every budget returned: one sequence
of max_model_len tokens fits into the pool.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from octavo.config import EngineConfig
from octavo.core.kv_cache_manager import blocks_held
from octavo.errors import ConfigError

MAX_KV_BYTES = 2**46  # half of what a process can address on 64-bit processors; the cache is reserved as address space


@dataclass(frozen=True, slots=True)
class KVBudget:
    num_blocks: int
    max_model_len: int  # tokens
    warnings: tuple[str, ...] = ()


def plan_kv_budget(
    config: EngineConfig,
    *,
    context_length: int,
    kv_bytes_per_block: int,
    available_bytes: int,
    group_windows: tuple[int | None, ...] = (None,),
) -> KVBudget:
    """`available_bytes`: what the process may take once the weights are in memory. Raises ConfigError."""

    def blocks_for(num_tokens: int) -> int:
        return blocks_held(group_windows, num_tokens, config.block_size, config.max_num_batched_tokens)

    def longest(num_blocks: int, limit: int) -> int:
        """The most tokens up to `limit`, in whole blocks or all, that `num_blocks` hold. ConfigError: not even one."""
        rooms = range(1, -(-limit // config.block_size) + 1)
        fitting = bisect_right(rooms, num_blocks, key=lambda room: blocks_for(room * config.block_size))
        if not fitting:
            raise ConfigError(
                f"{source} holds no KV block of {kv_bytes_per_block} bytes; give more memory or use a smaller model",
                param="kv_cache_memory_bytes" if is_fixed else "gpu_memory_utilization",
            )
        return min(fitting * config.block_size, limit)

    asked = config.max_model_len
    if asked is not None and asked > context_length:
        raise ConfigError(
            f"max_model_len is {asked}, the model was made for {context_length} tokens; "
            f"start with --max-model-len {context_length} or less",
            param="max_model_len",
        )
    wanted = context_length if asked is None else asked
    needed = blocks_for(wanted)
    num_blocks, source, is_fixed = _blocks_by_memory(
        config, needed=needed, kv_bytes_per_block=kv_bytes_per_block, available_bytes=available_bytes
    )
    over: tuple[str, ...] = ()
    if is_fixed and (num_bytes := num_blocks * kv_bytes_per_block) > available_bytes:
        over = (
            f"the KV cache may grow to {num_bytes} bytes ({source}), but {available_bytes} bytes of memory are "
            "available: requests that fill it may run the machine out of memory",
        )
    if num_blocks >= needed:
        return KVBudget(num_blocks, wanted, over)
    possible = num_blocks if is_fixed else max(num_blocks, available_bytes // kv_bytes_per_block)
    if asked is None:
        num_blocks = max(num_blocks, min(blocks_for(1), possible))
        fits = longest(num_blocks, wanted)
        if fits == wanted:
            return KVBudget(num_blocks, wanted)
        line = f"max_model_len lowered from {wanted} to {fits} tokens: {source} holds {num_blocks} blocks"
        return KVBudget(num_blocks, fits, (line, *over))
    if possible >= needed:
        line = (
            f"the KV cache may grow to {needed * kv_bytes_per_block} bytes, beyond gpu_memory_utilization "
            f"{config.gpu_memory_utilization:g}: one sequence of max_model_len {asked} needs them"
        )
        return KVBudget(needed, asked, (line,))
    fits = longest(possible, asked)
    raise ConfigError(
        f"max_model_len is {asked}, which needs {needed} blocks of {config.block_size} tokens; {source} holds "
        f"{possible}; the largest that fits is {fits}: start with --max-model-len {fits} or less, or give more memory",
        param="max_model_len",
    )


def _blocks_by_memory(
    config: EngineConfig, *, needed: int, kv_bytes_per_block: int, available_bytes: int
) -> tuple[int, str, bool]:
    """(blocks, what decided it for people, whether a person fixed it)."""
    if config.num_gpu_blocks_override is not None:
        blocks = config.num_gpu_blocks_override
        _check_addressable("num_gpu_blocks_override", blocks * kv_bytes_per_block)
        return blocks, f"--num-gpu-blocks-override {blocks}", True
    if config.kv_cache_memory_bytes is not None:
        given = config.kv_cache_memory_bytes
        _check_addressable("kv_cache_memory_bytes", given)
        return given // kv_bytes_per_block, f"--kv-cache-memory-bytes {given}", True
    budget = int(available_bytes * config.gpu_memory_utilization)
    source = f"{config.gpu_memory_utilization:g} of the {available_bytes} bytes of memory available"
    return min(budget // kv_bytes_per_block, needed * config.max_num_seqs), source, False


def _check_addressable(param: str, num_bytes: int) -> None:
    if num_bytes > MAX_KV_BYTES:
        raise ConfigError(
            f"{param} asks for {num_bytes} bytes of KV cache, the most that can be addressed is {MAX_KV_BYTES} bytes; "
            "lower it",
            param=param,
        )
