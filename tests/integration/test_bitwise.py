"""The rule of batch invariance with the real model: the same tokens and the same logits, bit for bit, whatever else the
engine is doing. Every test asserts that what it is about really happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo._native import available_isas
from octavo.config import EngineConfig
from octavo.core.block import SeqId
from octavo.core.protocols import TierStats
from octavo.core.scheduler_output import SchedulerOutput, StepOutput
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine, EngineRequest
from octavo.sampling_params import SamplingParams

pytestmark = pytest.mark.model

PROMPT = (
    "An octavo is a sheet of paper folded three times into eight leaves, sixteen pages. Printers of the fifteenth "
    "century cut the price of a book with it, because one sheet fed many pages; a server that keeps its memory in "
    "blocks of sixteen tokens does much the same. In one sentence, what do printers and servers have in common? 답:"
)
NUM_TOKENS = 20
TARGET = "target"


@dataclass
class Seen:
    """What became of the target, and what the engine did meanwhile."""

    token_ids: list[int] = field(default_factory=list)
    logits: list[npt.NDArray[np.float32]] = field(default_factory=list)  # [vocab] of each token
    num_cached_tokens: int = 0
    num_starts: int = 0  # rows added for it: more than one after a preemption
    max_rows: int = 0  # sequences in one step with it
    chunks: list[int] = field(default_factory=list)  # tokens of its prompt in each step
    num_preemptions: int = 0
    num_copies: int = 0
    num_loaded_blocks: int = 0  # that it began with, brought back from a tier
    tier: TierStats | None = None


class Watch:
    """Looks over the shoulder of the seam between scheduler and executor."""

    def __init__(self, engine: Engine) -> None:
        self.seen: dict[int, Seen] = {}
        self.seq_ids: dict[SeqId, int] = {}
        self.engine = engine
        self.executor: Any = engine.executor
        self.executor.keep_logits = True
        self.commit, engine.scheduler.commit = engine.scheduler.commit, self.watched  # type: ignore[method-assign]
        self.history: list[SchedulerOutput] = []

    def watched(self, plan: SchedulerOutput, result: StepOutput, now: float, seconds: float) -> Any:
        rows = dict(self.executor.last_logits)
        updates = self.commit(plan, result, now, seconds)
        self.history.append(plan)
        parent = next((each.seq_id for each in updates if each.request_id == TARGET and each.index == 0), None)
        for update in updates:
            if update.request_id == TARGET:
                self.seq_ids[update.seq_id] = update.index
                seen = self.seen.setdefault(update.index, Seen())
                seen.token_ids += update.new_token_ids
                seen.num_cached_tokens = update.num_cached_tokens
                row = rows[update.seq_id] if update.seq_id in rows else rows[parent]  # the fork's first draw
                seen.logits += [row.copy()] * len(update.new_token_ids)
        return updates

    def finish(self, num_prompt_tokens: int) -> dict[int, Seen]:
        stats = self.engine.stats()
        for seq_id, index in self.seq_ids.items():
            seen = self.seen[index]
            seen.num_preemptions, seen.num_copies = stats.num_preemptions, stats.num_block_copies
            seen.tier = next(iter(stats.tiers), None)
            for plan in self.history:
                loaded = {block_id for block_id, _ in plan.loads}
                for added in plan.added:
                    if added.seq_id == seq_id:
                        seen.num_starts += 1
                        seen.num_loaded_blocks += len(loaded.intersection(*map(set, added.block_tables)))
                if seq_id in plan.seq_ids:
                    place = plan.seq_ids.index(seq_id)
                    seen.max_rows = max(seen.max_rows, len(plan.seq_ids))
                    if plan.num_computed_tokens[place] < num_prompt_tokens:
                        seen.chunks.append(plan.num_scheduled_tokens[place])
        return self.seen


def target(engine: Engine, request_id: str = TARGET, text: str = PROMPT, **sampling: Any) -> EngineRequest:
    fields = {"temperature": 0.0, "max_tokens": NUM_TOKENS, "ignore_eos": True, **sampling}
    return EngineRequest(request_id, tuple(engine.tokenizer.encode(text)), SamplingParams(**fields))


def company(engine: Engine, count: int, max_tokens: int, short: bool) -> list[EngineRequest]:
    """Of many lengths and kinds, some beginning as the target does."""
    requests = []
    for number in range(count):
        text = (
            PROMPT[: 7 + 11 * number]
            if number % 3 == 0
            else f"Count from {number} to {number * 7}: " * (1 + number % 4)
        )
        text = f"{number} and" if short else text
        kind = {"temperature": 0.9, "seed": number} if number % 2 else {}
        requests.append(target(engine, f"other {number}", text, max_tokens=max_tokens, **kind))
    return requests


def run(
    path: Path,
    *,
    before: int = 0,
    forget: bool = False,
    others: int = 0,
    others_tokens: int = 24,
    text: str = PROMPT,
    sampling: dict[str, Any] | None = None,
    short: bool = False,
    **options: Any,
) -> dict[int, Seen]:
    """The target's samples, after `before` runs of the same prompt and among `others`, which start first.

    `forget`: what the earlier runs left in the cache leaves memory, for the tier where there is one.
    """
    config = {"num_threads": 2, "max_num_seqs": 32, "max_model_len": 512, **options}
    engine = build_engine(EngineConfig(model=str(path), **config))
    info = engine.info
    assert (info.num_threads, info.block_size) == (config["num_threads"], options.get("block_size", 16))
    assert info.isa == options.get("isa", info.isa)
    try:
        for number in range(before):
            engine.add_request(target(engine, f"before {number}", text))
            drain(engine)
        if forget:
            assert engine.scheduler.drop_cached(engine.info.num_blocks) > 0
            engine.rest()
        for request in company(engine, others, others_tokens, short):
            engine.add_request(request)
        watch = Watch(engine)
        asked = target(engine, text=text, **(sampling or {}))
        engine.add_request(asked)
        drain(engine)
        return watch.finish(len(asked.prompt_token_ids))
    finally:
        engine.close()


def drain(engine: Engine) -> None:
    while engine.has_unfinished:
        for delta in engine.step():
            assert delta.error is None
    engine.scheduler.check_integrity()


def assert_same(got: dict[int, Seen], expected: dict[int, Seen]) -> None:
    assert got.keys() == expected.keys()
    for index, want in expected.items():
        assert got[index].token_ids == want.token_ids
        assert len(got[index].logits) == len(want.logits) == len(want.token_ids) > 3
        for position, (ours, theirs) in enumerate(zip(got[index].logits, want.logits, strict=True)):
            differing = np.flatnonzero(ours.view(np.uint32) != theirs.view(np.uint32))
            assert differing.size == 0, f"sample {index}, token {position}: {differing.size} logits differ"


@pytest.fixture(scope="module")
def alone(smollm2_path: Path) -> dict[int, Seen]:
    """Alone, the prompt whole, nothing cached."""
    seen = run(smollm2_path, enable_prefix_caching=False)
    assert (seen[0].max_rows, len(seen[0].chunks), seen[0].num_cached_tokens) == (1, 1, 0)
    return seen


@pytest.mark.parametrize("chunk", [1, 16, 37])
def test_the_prompt_in_chunks(smollm2_path: Path, alone: dict[int, Seen], chunk: int) -> None:
    seen = run(smollm2_path, max_num_batched_tokens=chunk)
    assert len(seen[0].chunks) == -(-sum(seen[0].chunks) // chunk) > 1
    assert seen[0].chunks[0] == chunk
    assert_same(seen, alone)


@pytest.mark.parametrize(("chunk", "caching"), [(37, True), (512, True), (512, False)])
def test_among_31_others(smollm2_path: Path, alone: dict[int, Seen], chunk: int, caching: bool) -> None:
    """With caching most of its prompt is another's; without, it is computed in the crowd."""
    seen = run(smollm2_path, others=31, max_num_batched_tokens=chunk, enable_prefix_caching=caching)
    assert seen[0].max_rows >= (16 if chunk == 37 else 32)
    assert (len(seen[0].chunks) > 1) is (chunk == 37 or not caching)
    assert (sum(seen[0].chunks) == sum(alone[0].chunks)) is not caching
    assert_same(seen, alone)


@pytest.mark.parametrize("caching", [True, False])
def test_preempted_and_resumed(smollm2_path: Path, alone: dict[int, Seen], caching: bool) -> None:
    pool: dict[str, Any] = {"num_gpu_blocks_override": 20, "max_model_len": 256, "max_num_batched_tokens": 64}
    seen = run(smollm2_path, others=8, others_tokens=64, enable_prefix_caching=caching, **pool)
    assert seen[0].num_preemptions > 0
    assert seen[0].num_starts > 1
    assert_same(seen, alone)


def test_from_a_warm_prefix_cache(smollm2_path: Path, alone: dict[int, Seen]) -> None:
    seen = run(smollm2_path, before=1)
    assert seen[0].num_cached_tokens > 0
    assert sum(seen[0].chunks) < sum(alone[0].chunks)
    assert_same(seen, alone)


def tier(kind: str, folder: Path) -> tuple[str, ...]:
    return ("ram:64MiB",) if kind == "ram" else (f"disk:{folder / 'tier'},64MiB",)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_preempted_and_swapped(smollm2_path: Path, tmp_path: Path, alone: dict[int, Seen], kind: str) -> None:
    pool: dict[str, Any] = {"num_gpu_blocks_override": 20, "max_model_len": 256, "max_num_batched_tokens": 64}
    swap: dict[str, Any] = {"kv_tiers": tier(kind, tmp_path), "kv_tier_policy": "swap"}
    seen = run(smollm2_path, others=8, others_tokens=64, **pool, **swap)
    assert seen[0].num_preemptions > 0
    assert seen[0].num_starts > 1
    assert seen[0].num_loaded_blocks > 0
    assert_same(seen, alone)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_the_prefix_from_a_tier(smollm2_path: Path, tmp_path: Path, alone: dict[int, Seen], kind: str) -> None:
    swap: dict[str, Any] = {"kv_tiers": tier(kind, tmp_path), "kv_tier_policy": "swap"}
    seen = run(smollm2_path, before=1, forget=True, others=3, **swap)
    assert seen[0].num_loaded_blocks == seen[0].num_cached_tokens // 16 > 2
    assert_same(seen, alone)


def test_the_prefix_from_disk_after_a_restart(smollm2_path: Path, tmp_path: Path, alone: dict[int, Seen]) -> None:
    swap: dict[str, Any] = {"kv_tiers": tier("disk", tmp_path), "kv_tier_policy": "swap"}
    cold = run(smollm2_path, **swap)
    assert cold[0].num_loaded_blocks == 0
    assert_same(cold, alone)
    seen = run(smollm2_path, **swap)
    assert seen[0].num_loaded_blocks == seen[0].num_cached_tokens // 16 > 2
    assert_same(seen, alone)


@pytest.mark.parametrize(
    "other",
    [
        {"block_size": 32},
        {"kv_cache_dtype": "float32"},
        {"kv_cache_dtype": "int8"},
        {"isa": "avx2"},
        {"isa": "plain"},
        {},
    ],
    ids=str,
)
def test_only_the_same_numbers_come_back_after_a_restart(
    smollm2_path: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    """Another block size, type of keys and values or instruction set finds nothing in the tier."""
    if other.get("isa", "plain") not in available_isas()[0 if other.get("isa") == "plain" else 1 :]:
        pytest.skip(f"this machine's best is {available_isas()[0]}, so {other['isa']} is not another")
    options: dict[str, Any] = {"text": PROMPT[:80], "sampling": {"max_tokens": 1}, "kv_tier_policy": "swap"}
    run(smollm2_path, kv_tiers=tier("disk", tmp_path), **options)
    seen = run(smollm2_path, kv_tiers=tier("disk", tmp_path), **options, **other)
    stats = seen[0].tier
    assert stats is not None
    assert stats.num_blocks > 0
    assert (seen[0].num_loaded_blocks > 0) is (not other)


@pytest.mark.parametrize("block_size", [32, 64])
def test_larger_blocks(smollm2_path: Path, alone: dict[int, Seen], block_size: int) -> None:
    assert_same(run(smollm2_path, block_size=block_size), alone)
    warm = run(smollm2_path, block_size=block_size, before=1, others=31, max_num_batched_tokens=37)
    assert warm[0].num_cached_tokens >= block_size
    assert warm[0].max_rows >= 16
    assert_same(warm, alone)


def test_when_every_block_of_the_prompt_is_cached(smollm2_path: Path) -> None:
    engine = build_engine(EngineConfig(model=str(smollm2_path), max_model_len=64))
    words = engine.tokenizer.encode(PROMPT)
    text = next(t for t in (PROMPT[:n] for n in range(40, len(PROMPT))) if len(engine.tokenizer.encode(t)) == 32)
    engine.close()
    assert len(words) > 32
    cold, warm = run(smollm2_path, text=text), run(smollm2_path, text=text, before=1)
    assert (warm[0].num_cached_tokens, warm[0].chunks) == (32, [1]) or (
        warm[0].num_cached_tokens == 31 and warm[0].chunks == [1]
    )
    assert_same(warm, cold)


@pytest.mark.parametrize("others", [0, 31])
def test_with_one_thread(smollm2_path: Path, alone: dict[int, Seen], others: int) -> None:
    assert_same(run(smollm2_path, num_threads=1, others=others), alone)


def test_samples_that_fork_and_copy(smollm2_path: Path) -> None:
    sampling = {"n": 3, "temperature": 0.8, "seed": 11}
    expected = run(smollm2_path, sampling=sampling, enable_prefix_caching=False)
    seen = run(smollm2_path, sampling=sampling, others=29, max_num_batched_tokens=50)
    for each in (*expected.values(), *seen.values()):
        assert each.num_copies > 0
    assert seen[0].max_rows >= 16
    assert len({tuple(sample.token_ids) for sample in expected.values()}) == 3
    assert_same(seen, expected)
    assert_same(run(smollm2_path, sampling={**sampling, "n": 1}), {0: expected[0]})


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "int8"])
def test_other_types_of_keys_and_values_keep_the_rule_too(smollm2_path: Path, kv_cache_dtype: str) -> None:
    options: Sequence[dict[str, Any]] = (
        {},
        {"others": 20},
        {"max_num_batched_tokens": 16},
        {"num_threads": 1, "before": 1},
    )
    expected, *others = (run(smollm2_path, kv_cache_dtype=kv_cache_dtype, **each) for each in options)
    assert others[0][0].max_rows >= 16
    assert others[2][0].num_cached_tokens > 0
    for seen in others:
        assert_same(seen, expected)


def test_int8_keys_and_values_come_back_from_a_tier_and_from_copies(smollm2_path: Path, tmp_path: Path) -> None:
    kind: dict[str, Any] = {"kv_cache_dtype": "int8"}
    alone = run(smollm2_path, **kind)
    pool: dict[str, Any] = {"num_gpu_blocks_override": 20, "max_model_len": 256, "max_num_batched_tokens": 64}
    swap: dict[str, Any] = {"kv_tiers": tier("disk", tmp_path), "kv_tier_policy": "swap"}
    seen = run(smollm2_path, others=8, others_tokens=64, **kind, **pool, **swap)
    assert seen[0].num_preemptions > 0
    assert seen[0].num_loaded_blocks > 0
    assert_same(seen, alone)
    sampling = {"n": 3, "temperature": 0.8, "seed": 11}
    expected = run(smollm2_path, sampling=sampling, enable_prefix_caching=False, **kind)
    forked = run(smollm2_path, sampling=sampling, others=8, max_num_batched_tokens=50, **kind)
    assert all(each.num_copies > 0 for each in (*expected.values(), *forked.values()))
    assert_same(forked, expected)


@pytest.mark.parametrize("isa", ["avx2", pytest.param("plain", marks=pytest.mark.long)])
def test_every_instruction_set_keeps_the_rule(smollm2_path: Path, isa: str) -> None:
    """Its logits may differ from another's; its own do not depend on company, chunks or threads."""
    if isa not in available_isas():
        pytest.skip(f"this machine has no {isa}")
    options: dict[str, Any] = {"isa": isa, "text": PROMPT[:60], "sampling": {"max_tokens": 4}}
    expected = run(smollm2_path, **options)
    crowd = run(smollm2_path, others=16, others_tokens=6, short=True, num_threads=1, **options)
    assert crowd[0].max_rows >= 16
    assert_same(crowd, expected)
    chunks = run(smollm2_path, max_num_batched_tokens=5, **options)
    assert len(chunks[0].chunks) > 1
    assert_same(chunks, expected)
