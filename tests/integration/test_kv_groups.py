"""Models with several KV groups, served: sliding and full layers in one pool, in crowds, after preemption, from the
prefix cache and from a tier. Answers equal those alone bit for bit, and every test asserts that its condition came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo._native import available_isas
from octavo.config import EngineConfig
from octavo.core.block import NULL_BLOCK, BlockId
from octavo.core.kv_cache_manager import blocks_held
from octavo.core.scheduler_output import SchedulerOutput, StepOutput
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine, EngineRequest
from octavo.engine.info import EngineStats
from octavo.sampling_params import SamplingParams
from support.engines import Answers, run
from support.goldens import load_golden
from support.hf_folder import served_golden

NAMES = ("qwen2-half-sliding", "qwen3-mostly-sliding")  # 2 groups; 4 groups, one half empty
WINDOW = 24
MAX_MODEL_LEN = 256


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served_golden(name, tmp_path_factory.mktemp("model") / name)


@dataclass
class Watch:
    """What the scheduler told the executor."""

    num_dropped: int = 0  # blocks that fell out of a window while their sequence went on
    num_begun_behind_window: int = 0  # rows added without the first blocks of a sliding group
    most_used: int = 0  # blocks in tables at once
    chunks: list[int] = field(default_factory=list)
    most_rows: int = 0


def watch(engine: Engine) -> Watch:
    seen, execute = Watch(), engine.executor.execute

    def watched(plan: SchedulerOutput, *masks: Any) -> StepOutput:
        seen.num_dropped += sum(update.block_ids.count(NULL_BLOCK) for update in plan.block_updates)
        for added in plan.added:
            assert all(NULL_BLOCK not in table for table, window in tables(added.block_tables, engine) if not window)
            seen.num_begun_behind_window += any(table[:1] == (NULL_BLOCK,) for table in added.block_tables)
        seen.most_used = max(seen.most_used, engine.stats().num_blocks_used)
        seen.chunks += [count for count in plan.num_scheduled_tokens if count > 1]
        seen.most_rows = max(seen.most_rows, len(plan.seq_ids))
        return execute(plan, *masks)

    engine.executor.execute = watched  # type: ignore[method-assign]
    return seen


def tables(block_tables: tuple[tuple[Any, ...], ...], engine: Engine) -> Iterator[tuple[tuple[Any, ...], int | None]]:
    return zip(block_tables, engine.info.group_windows, strict=True)


def make_engine(folder: Path, **options: Any) -> Engine:
    config = {"num_threads": 2, "max_num_seqs": 12, "max_model_len": MAX_MODEL_LEN, **options}
    return build_engine(EngineConfig(model=str(folder), **config), strict=True)


def requests() -> list[EngineRequest]:
    """Three begin alike, over several windows; two draw three samples; lengths on both sides of blocks and windows."""
    rng = np.random.default_rng(7)
    shared = rng.integers(0, 260, 75).tolist()
    prompts = [[*shared, *rng.integers(0, 260, own).tolist()] for own in (1, 20, 37)]
    prompts += [rng.integers(0, 260, length).tolist() for length in (3, 16, 24, 25, 48, 130)]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 5, "n": 3},
        {"temperature": 0.7, "seed": 3},
    ]
    return [
        EngineRequest(
            f"r{number}",
            tuple(prompt),
            SamplingParams(max_tokens=40 + number, ignore_eos=True, logprobs=2, **kinds[number % 3]),
        )
        for number, prompt in enumerate(prompts)
    ]


def words(answers: Answers) -> dict[tuple[str, int], Any]:
    """Tokens, and their log-probabilities with the best beside them: floats of the whole row of logits."""
    return {
        key: (answer.token_ids, [entry for delta in answer.deltas for entry in delta.logprobs])
        for key, answer in answers.items()
    }


def alone(folder: Path, **options: Any) -> dict[tuple[str, int], Any]:
    """Each in turn, its prompt whole, with nothing cached and memory to spare."""
    engine = make_engine(folder, enable_prefix_caching=False, max_num_batched_tokens=256, **options)
    found: dict[tuple[str, int], Any] = {}
    for request in requests():
        found |= words(run(engine, [request]))
    assert engine.stats().num_preemptions == 0
    engine.close()
    return found


def crowd(folder: Path, **options: Any) -> tuple[dict[tuple[str, int], Any], Watch, EngineStats]:
    """All at once, then all again: the second time prefixes are cached."""
    engine = make_engine(folder, **options)
    seen = watch(engine)
    found = words(run(engine, requests()))
    again = [EngineRequest(f"again {r.request_id}", r.prompt_token_ids, r.sampling) for r in requests()]
    warm = words(run(engine, again))
    assert {(key[0].removeprefix("again "), key[1]): value for key, value in warm.items()} == found
    stats = engine.stats()
    engine.close()
    return found, seen, stats


@pytest.mark.parametrize("isa", available_isas())
def test_a_crowd_in_a_small_pool_answers_as_each_alone_bit_for_bit(name: str, folder: Path, isa: str) -> None:
    groups = len(load_golden(name).program.kv_groups)
    found, seen, stats = crowd(folder, isa=isa, max_num_batched_tokens=37, num_gpu_blocks_override=17 * groups)
    assert found == alone(folder, isa=isa, num_threads=1)
    assert seen.num_dropped > 50
    assert seen.num_begun_behind_window > 0
    assert seen.most_rows > 3
    assert stats.num_preemptions > 0
    assert stats.num_prefix_cache_hits > 75
    assert stats.num_block_copies > 0


@pytest.mark.parametrize("chunk", [1, 16, 200])
def test_no_chunk_size_changes_a_bit(folder: Path, chunk: int) -> None:
    found, seen, stats = crowd(folder, max_num_batched_tokens=chunk, kv_cache_dtype="float32")
    assert found == alone(folder, kv_cache_dtype="float32")
    assert max(seen.chunks, default=1) <= chunk
    assert (len(seen.chunks) > 0) is (chunk > 1)
    assert seen.num_dropped > 50
    assert stats.num_prefix_cache_hits > 75


def test_the_cpu_executor_says_what_the_reference_says(name: str, folder: Path) -> None:
    """In float32, on the path that gives blocks back: the reference reads whatever it was not to read as NaN."""
    cpu, seen, _ = crowd(folder, dtype="float32", kv_cache_dtype="float32")
    engine = make_engine(folder, executor="reference")
    reference_seen = watch(engine)
    expected = words(run(engine, requests()))
    assert min(seen.num_dropped, reference_seen.num_dropped) > 30
    assert cpu.keys() == expected.keys()
    for key, (token_ids, logprobs) in expected.items():
        assert cpu[key][0] == token_ids
        for ours, theirs in zip(cpu[key][1], logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-4)


@pytest.mark.parametrize("executor", ["cpu", "reference"])
@pytest.mark.parametrize("name", [*NAMES, "gemma3"], indirect=True)
def test_the_engine_says_what_transformers_says(name: str, folder: Path, executor: str) -> None:
    golden = load_golden(name)
    options: dict[str, Any] = {} if executor == "reference" else {"dtype": "float32", "kv_cache_dtype": "float32"}
    engine = make_engine(folder, executor=executor, max_num_batched_tokens=50, **options)
    seen = watch(engine)
    asked = [
        EngineRequest(str(number), tuple(prompt), SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True))
        for number, prompt in enumerate(golden.prompts)
    ]
    answers = run(engine, asked)
    assert [answers[str(number), 0].token_ids for number in range(len(asked))] == golden.token_ids
    assert seen.num_dropped > 0


@pytest.mark.parametrize("executor", ["cpu", "reference"])
def test_executor_program_and_scheduler_agree_about_groups_and_bytes(name: str, folder: Path, executor: str) -> None:
    program = load_golden(name).program
    engine = make_engine(folder, executor=executor, max_num_batched_tokens=16, max_num_seqs=1)
    info, seen = engine.info, watch(engine)
    windows = tuple(group.sliding_window for group in program.kv_groups)
    assert info.group_windows == engine.scheduler.config.group_windows == windows
    assert {None, WINDOW} == set(windows)
    sizes = {"qwen2-half-sliding": [1, 1], "qwen3-mostly-sliding": [2, 2, 1, 2]}  # the smaller one is padded
    assert [len(group.layers) for group in program.kv_groups] == sizes[name]
    element_bytes = 2 if executor == "cpu" else 4
    assert info.kv_bytes_per_block == program.kv_bytes_per_block(16, element_bytes)
    run(engine, [EngineRequest("one", (1, 2, 3), SamplingParams(temperature=0.0, max_tokens=1))])
    assert len(engine.executor.read_block(BlockId(0))) == info.kv_bytes_per_block
    # The pool for one sequence is what it needs at its widest, and a sequence of full length runs in it.
    assert info.num_blocks == blocks_held(windows, MAX_MODEL_LEN, 16, 16) < len(windows) * MAX_MODEL_LEN // 16
    prompt = tuple(np.random.default_rng(1).integers(0, 260, 200).tolist())
    full = EngineRequest("full", prompt, SamplingParams(temperature=0.0, max_tokens=56, ignore_eos=True))
    answers = run(engine, [full])
    assert len(answers["full", 0].token_ids) == 56
    assert engine.stats().num_preemptions == 0
    assert seen.most_used <= info.num_blocks
    assert seen.num_dropped >= (MAX_MODEL_LEN - WINDOW - 16) // 16 * sum(window is not None for window in windows)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_blocks_of_every_group_come_back_from_a_tier(folder: Path, name: str, kind: str, tmp_path: Path) -> None:
    groups = len(load_golden(name).program.kv_groups)
    tier = "ram:64MiB" if kind == "ram" else f"disk:{tmp_path / 'tier'},64MiB"
    swapping: dict[str, Any] = {"max_num_batched_tokens": 37, "kv_tiers": (tier,), "kv_tier_policy": "swap"}
    found, _, stats = crowd(folder, num_gpu_blocks_override=17 * groups, **swapping)
    assert found == alone(folder)
    assert stats.num_preemptions > 0
    assert sum(stats.num_prefix_hits_by_tier.values()) > 0
    if kind == "disk":  # and after a restart
        engine = make_engine(folder, **swapping)
        assert words(run(engine, requests())) == found
        assert sum(engine.stats().num_prefix_hits_by_tier.values()) > 0
        engine.close()
