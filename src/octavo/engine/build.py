"""From an `EngineConfig` to an `Engine`. The only module that knows every executor, loader and tier.

Refuses to start what cannot run: options that clash are a ConfigError, a file that is wrong a ModelFileError, both
before memory is taken for the KV cache. What it decides for an option left open stands in `EngineInfo`, and what it
lowered in its `warnings`. Executors and loaders are imported when chosen: the fake model starts without numpy.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from octavo.config import EngineConfig, ExecutorName, KVDtype, octavo_home, parse_client_weights
from octavo.core.fair import FairShare
from octavo.core.policies import ByPriority, FirstComeFirstServed, OrderingPolicy
from octavo.core.preemption import LeastRecompute, LowestPriority, NewestFirst, PreemptionPolicy
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.step_costs import StepCosts
from octavo.core.swap_costs import SwapCosts
from octavo.core.swapper import Swapper
from octavo.engine.block_mover import tier_identity
from octavo.engine.c_heap import c_heap_trim
from octavo.engine.cache_keeper import CacheKeeper, MemorySource, reserve_bytes
from octavo.engine.engine import Engine
from octavo.engine.fake_model import fake_logprob_step, fake_next_token
from octavo.engine.info import EngineInfo
from octavo.engine.kv_budget import KVBudget, plan_kv_budget
from octavo.engine.memory import SystemMemory, available_bytes
from octavo.errors import ConfigError, ModelFileError
from octavo.loading.model_files import ModelFiles, resolve
from octavo.loading.model_names import FAKE_MODEL
from octavo.tiers.spec import open_tier

if TYPE_CHECKING:
    from octavo.core.protocols import Executor, ExecutorInfo, Tier
    from octavo.loading.chat_template import ChatTemplate
    from octavo.loading.load_model import LoadedModel
    from octavo.loading.tokenizer import TokenizerLike

ProgressCallback = Callable[[str, float], None]  # (stage for people, fraction 0..1)
CPU_TILE_TOKENS = 16  # the cpu executor keeps KV in tiles of so many tokens
_KV_BYTES = {"bfloat16": (2, 0), "float32": (4, 0), "int8": (1, 2)}  # of an element, of a token and head


@dataclass(frozen=True, slots=True)
class _Parts:
    """What differs between kinds of model; the rest of an engine is the same."""

    architecture: str
    path: str
    tokenizer: TokenizerLike
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    vocab_size: int  # of the logits; may exceed the tokenizer's
    context_length: int
    fingerprint: str
    group_windows: tuple[int | None, ...]
    budget: KVBudget
    executor: Executor
    num_parameters: int = 0
    embedding_size: int = 0
    warnings: tuple[str, ...] = ()


def build_engine(
    config: EngineConfig,
    progress: ProgressCallback | None = None,
    *,
    memory: MemorySource | None = None,
    strict: bool = False,
) -> Engine:
    """Raises ConfigError, or ModelFileError, also where memory does not do. `progress` hears of fetching and loading.
    `memory` stands in for this system's; `strict`: wrong block accounts raise."""
    try:
        return _build_engine(config, progress or _silent, memory, strict)
    except MemoryError:
        text = f"there is not enough memory to load {config.model}; free some or use a smaller model"
        raise ModelFileError(text) from None


def _build_engine(config: EngineConfig, report: ProgressCallback, memory: MemorySource | None, strict: bool) -> Engine:
    files = _resolve(config, report)
    executor_name = _executor_name(config, files)
    parts = _fake_parts(config) if executor_name == "fake" else _model_parts(config, files, executor_name, report)
    kind, budget = parts.executor.info, parts.budget
    info = EngineInfo(
        model=files.name,
        path=parts.path,
        architecture=parts.architecture,
        executor=kind.name,
        isa=kind.isa,
        num_threads=kind.num_threads,
        weight_form=kind.weight_form,
        weight_bytes=kind.weight_bytes,
        kv_dtype=kind.kv_dtype,
        block_size=config.block_size,
        num_blocks=budget.num_blocks,
        kv_bytes_per_block=kind.kv_bytes_per_block,
        max_model_len=budget.max_model_len,
        context_length=parts.context_length,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        vocab_size=parts.vocab_size,
        enable_prefix_caching=config.enable_prefix_caching,
        scheduling_policy=config.scheduling_policy,
        kv_tiers=config.kv_tiers,
        group_windows=parts.group_windows,
        eos_token_ids=parts.eos_token_ids,
        chat_template=parts.chat_template,
        num_parameters=parts.num_parameters,
        embedding_size=parts.embedding_size,
        warnings=parts.warnings + budget.warnings,
    )
    costs = StepCosts()
    tier = open_tier(config.kv_tiers, block_bytes=kind.kv_bytes_per_block)
    swapper = None if tier is None else _swapper(config, tier, kind, costs)
    scheduler = Scheduler(
        _scheduler_config(config, parts), _ordering(config), _preemption(config, costs), swapper=swapper, costs=costs
    )
    return Engine(
        scheduler=scheduler,
        executor=parts.executor,
        tokenizer=parts.tokenizer,
        info=info,
        clock=time.monotonic,
        rng=random.Random(config.seed),
        fingerprint=parts.fingerprint,
        keeper=_cache_keeper(config, scheduler, kind.kv_bytes_per_block, memory or SystemMemory(), tier),
        tier=tier,
        strict=strict,
    )


def _swapper(config: EngineConfig, tier: Tier, kind: ExecutorInfo, costs: StepCosts) -> Swapper:
    return Swapper(
        tier,
        SwapCosts(kind.kv_bytes_per_block, costs.recompute_seconds, config.kv_tier_policy),
        identity=tier_identity(kind, config.block_size),
        block_bytes=kind.kv_bytes_per_block,
    )


def _cache_keeper(
    config: EngineConfig, scheduler: Scheduler, block_bytes: int, memory: MemorySource, tier: Tier | None
) -> CacheKeeper:
    step_blocks = config.max_num_batched_tokens // config.block_size + config.max_num_seqs
    return CacheKeeper(
        scheduler,
        memory,
        block_bytes=block_bytes,
        idle_seconds=config.kv_cache_idle_seconds,
        reserve_bytes=reserve_bytes(memory.available_bytes(), step_blocks * block_bytes),
        shrink_tier=None if tier is None else partial(_shrink, tier, c_heap_trim()),
    )


def _shrink(tier: Tier, trim: Callable[[], None] | None, num_bytes: int) -> int:
    freed = tier.shrink(num_bytes)
    if freed and trim is not None:
        trim()  # the payloads lay in the C heap
    return freed


def make_chat_template(engine: Engine) -> ChatTemplate | None:
    """The model's template, compiled. Raises ModelFileError when it does not compile."""
    from octavo.loading.chat_template import ChatTemplate

    info, tokenizer = engine.info, engine.tokenizer
    if info.chat_template is None:
        return None
    marks = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    texts = ["" if token_id is None else tokenizer.token_text(token_id) for token_id in marks]
    return ChatTemplate(info.chat_template, *texts)


def _resolve(config: EngineConfig, report: ProgressCallback) -> ModelFiles:
    def fetching(done_bytes: int, all_bytes: int, stage: str) -> None:
        report(stage, done_bytes / all_bytes if all_bytes else 0.0)

    return resolve(config.model, home=octavo_home(), progress=fetching)


def _executor_name(config: EngineConfig, files: ModelFiles) -> ExecutorName:
    if (files.kind == "fake") != (config.executor == "fake") and config.executor != "auto":
        raise ConfigError(
            f"executor {config.executor} cannot run the model {config.model!r}: the fake executor runs the model "
            f"{FAKE_MODEL!r} and nothing else does; leave --executor out",
            param="executor",
        )
    chosen: ExecutorName = "cpu" if config.executor == "auto" else config.executor
    if files.kind == "fake":
        chosen = "fake"
    if config.quantization is not None and chosen != "cpu":
        raise ConfigError(
            f"quantization is {config.quantization}, which only the cpu executor has and the {chosen} one has not; "
            "leave --quantization out",
            param="quantization",
        )
    return chosen


def _ordering(config: EngineConfig) -> OrderingPolicy:
    match config.scheduling_policy:
        case "priority":
            return ByPriority()
        case "fair":
            return FairShare(parse_client_weights(config.client_weights))
        case "fcfs":
            return FirstComeFirstServed()


def _preemption(config: EngineConfig, costs: StepCosts) -> PreemptionPolicy:
    match config.preemption_policy:
        case "lowest-priority":
            return LowestPriority()
        case "least-recompute":
            return LeastRecompute(costs, config.block_size)
        case "newest":
            return NewestFirst()


def _scheduler_config(config: EngineConfig, parts: _Parts) -> SchedulerConfig:
    return SchedulerConfig(
        num_blocks=parts.budget.num_blocks,
        block_size=config.block_size,
        max_model_len=parts.budget.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        watermark=config.watermark,
        group_windows=parts.group_windows,
        max_queue=config.max_queue,
        max_queue_tokens=config.max_queue_tokens,
        target_itl_seconds=None if config.target_itl_ms is None else config.target_itl_ms / 1000,
    )


def _fake_parts(config: EngineConfig) -> _Parts:
    from octavo.executors.fake import HIDDEN_SIZE, SLOT_BYTES, FakeExecutor
    from octavo.loading.fake_tokenizer import FakeTokenizer
    from octavo.loading.load_model import fake_metadata

    tokenizer, metadata = FakeTokenizer(), fake_metadata()
    context_length = config.max_model_len or metadata.context_length  # it was trained for none
    budget = plan_kv_budget(
        config,
        context_length=context_length,
        kv_bytes_per_block=config.block_size * SLOT_BYTES,
        available_bytes=available_bytes(),
    )
    executor = FakeExecutor(
        vocab_size=tokenizer.vocab_size,
        num_blocks=budget.num_blocks,
        block_size=config.block_size,
        next_token=fake_next_token,
        logprob_step=fake_logprob_step,
    )
    return _Parts(
        architecture="fake",
        path="",
        tokenizer=tokenizer,
        chat_template=metadata.chat_template,
        eos_token_ids=metadata.eos_token_ids,
        vocab_size=metadata.vocab_size,
        context_length=context_length,
        fingerprint="fake",
        group_windows=(None,),
        budget=budget,
        executor=executor,
        embedding_size=HIDDEN_SIZE,
    )


def _model_parts(
    config: EngineConfig, files: ModelFiles, executor_name: ExecutorName, report: ProgressCallback
) -> _Parts:
    from octavo.loading.load_model import load_model

    report("opening the model", 0.0)
    model = load_model(files)
    program = model.program
    kv_dtype = _kv_dtype(config, executor_name)
    group_windows = tuple(group.sliding_window for group in program.kv_groups)
    kv_bytes = _KV_BYTES["float32" if executor_name == "reference" else kv_dtype]  # it keeps rounded values as floats
    budget = plan_kv_budget(
        config,
        context_length=model.context_length,
        kv_bytes_per_block=program.kv_bytes_per_block(config.block_size, *kv_bytes),
        available_bytes=max(0, available_bytes() - _weight_bytes(model, executor_name, config)),
        group_windows=group_windows,
    )
    return _Parts(
        architecture=program.extra.get("family", ""),
        path=str(files.path),
        tokenizer=model.tokenizer_factory(),
        chat_template=model.chat_template,
        eos_token_ids=model.eos_token_ids,
        vocab_size=program.vocab_size,
        context_length=model.context_length,
        fingerprint=model.source.fingerprint.hex(),
        group_windows=group_windows,
        budget=budget,
        executor=_make_executor(config, model, executor_name, kv_dtype, budget, report),
        num_parameters=sum(map(math.prod, program.parameters.values())),
        embedding_size=program.hidden_size,
    )


def _make_executor(
    config: EngineConfig,
    model: LoadedModel,
    executor_name: ExecutorName,
    kv_dtype: KVDtype,
    budget: KVBudget,
    report: ProgressCallback,
) -> Executor:
    if executor_name == "reference":
        from octavo.executors.reference import ReferenceExecutor

        return ReferenceExecutor(
            program=model.program,
            source=model.source,
            num_blocks=budget.num_blocks,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=budget.max_model_len,
            kv_dtype="int8" if kv_dtype == "int8" else "float32",
        )
    from octavo.executors.cpu import CpuExecutor

    return CpuExecutor(
        program=model.program,
        source=model.source,
        num_blocks=budget.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=budget.max_model_len,
        kv_dtype=kv_dtype,
        dtype=config.dtype,
        quantization=config.quantization,
        num_threads=config.num_threads,
        isa=config.isa,
        progress=lambda fraction: report("packing the weights", fraction),
    )


def _kv_dtype(config: EngineConfig, executor_name: ExecutorName) -> KVDtype:
    """Raises ConfigError where the executor has no such KV cache."""
    if executor_name == "reference":
        if config.kv_cache_dtype == "bfloat16":
            raise ConfigError(
                "kv_cache_dtype is bfloat16, the reference executor keeps float32 or rounds to int8; "
                "leave --kv-cache-dtype out",
                param="kv_cache_dtype",
            )
        return "int8" if config.kv_cache_dtype == "int8" else "float32"
    if config.block_size % CPU_TILE_TOKENS:
        raise ConfigError(
            f"block_size is {config.block_size}, the cpu executor takes multiples of {CPU_TILE_TOKENS}; "
            f"start with --block-size {-(-config.block_size // CPU_TILE_TOKENS) * CPU_TILE_TOKENS}",
            param="block_size",
        )
    return "bfloat16" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def _weight_bytes(model: LoadedModel, executor_name: ExecutorName, config: EngineConfig) -> int:
    """About what the weights will take once packed: known before they are, so that KV leaves room for them."""
    widened = {"F16", "BF16"} if config.dtype == "float32" else set()
    bytewise = frozenset() if config.quantization is None else model.program.linear_weights

    def packed(name: str) -> int:
        tensor = model.source.info(name)
        if name in bytewise:
            return math.prod(tensor.shape)
        if executor_name == "reference" or tensor.tensor_type in widened:
            return 4 * math.prod(tensor.shape)
        return tensor.num_bytes

    return sum(map(packed, model.program.parameters))


def _silent(stage: str, fraction: float) -> None:
    """Nobody listens."""
