"""Beam search of real models through blocks: what transformers finds, and the same bits in any company.

The goldens are tests/goldens/*/beams.json. A search is compared where none of its decisions was closer than what
float32 sums in another order can move: CANDIDATE_TOLERANCE, in sums of up to 24 log-probabilities, between candidates,
and SCORE_TOLERANCE, as a share, between scores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from octavo.core.block_pool import BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.protocols import Executor
from octavo.core.request import Request, SequenceUpdate
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.executors.cpu import CpuExecutor
from octavo.executors.reference import ReferenceExecutor
from octavo.sampling_params import SamplingParams
from support.goldens import BEAM_NAMES, BeamGolden, golden_parameters, load_beams, load_golden
from support.sources import dict_source

CANDIDATE_TOLERANCE = 3e-4
SCORE_TOLERANCE = 2e-5
SHARE_COMPARED = 0.9
BLOCK_SIZE = 16
SIZES: dict[str, Any] = {"block_size": BLOCK_SIZE, "max_num_seqs": 64, "max_model_len": 128}


@dataclass
class Finished:
    """One request's answers, and what became of it on the way."""

    request: Request
    updates: dict[int, SequenceUpdate]  # by sample
    max_rows: int = 0  # sequences in one step with it

    @property
    def sequences(self) -> list[list[int]]:
        return [list(self.updates[index].new_token_ids) for index in sorted(self.updates)]

    @property
    def scores(self) -> list[float]:
        return [self.updates[index].score or 0.0 for index in sorted(self.updates)]

    @property
    def bits(self) -> list[tuple[Any, ...]]:
        return [(u.new_token_ids, u.logprobs, u.score, u.finish_reason) for _, u in sorted(self.updates.items())]


def run(
    executor: Executor, windows: tuple[int | None, ...], requests: Iterable[Request], **changes: Any
) -> dict[str, Finished]:
    """Adds the first request, one step later the others, and runs all to their ends. Checks the accounts and copies."""
    settings = {"num_blocks": 600, "max_num_batched_tokens": 128, "group_windows": windows, **SIZES, **changes}
    scheduler = Scheduler(SchedulerConfig(**settings))
    found = {request.request_id: Finished(request, {}) for request in requests}
    waiting = [finished.request for finished in found.values()]
    scheduler.add(waiting.pop(0))
    while scheduler.has_unfinished or waiting:
        plan = scheduler.plan(0.0)
        assert plan is not None
        assert len(plan.copies) <= len(plan.seq_ids) * len(windows)
        live = {s.seq_id: s.request.request_id for s in scheduler.sequences()}
        for request_id in {live[seq_id] for seq_id in plan.seq_ids}:
            found[request_id].max_rows = max(found[request_id].max_rows, len(plan.seq_ids))
        for update in scheduler.commit(plan, executor.execute(plan), 0.0):
            assert update.error is None
            if update.finish_reason is not None:
                found[update.request_id].updates[update.index] = update
        while waiting:
            scheduler.add(waiting.pop(0))
    scheduler.check_integrity()
    assert scheduler.stats().num_used_blocks == 0
    return found


def request_for(golden: BeamGolden, request_id: str, **options: Any) -> Request:
    sampling = SamplingParams(
        n=golden.width,
        use_beam_search=True,
        length_penalty=golden.length_penalty,
        early_stopping=golden.early_stopping,  # type: ignore[arg-type]
        max_tokens=golden.max_tokens,
        **options,
    )
    return Request(request_id, tuple(golden.prompt_token_ids), sampling, 0, tuple(golden.end_token_ids), 0.0)


def compare(goldens: list[BeamGolden], found: dict[str, Finished]) -> None:
    compared = 0
    for number, golden in enumerate(goldens):
        if golden.min_gap <= CANDIDATE_TOLERANCE or golden.min_score_gap <= SCORE_TOLERANCE:
            continue
        compared += 1
        finished = found[str(number)]
        assert finished.sequences == golden.sequences, f"search {number} finds other answers than transformers"
        assert finished.scores == pytest.approx(golden.scores, rel=SCORE_TOLERANCE, abs=CANDIDATE_TOLERANCE)
    assert compared >= SHARE_COMPARED * len(goldens)


def make_cpu(name: str, **options: Any) -> tuple[CpuExecutor, tuple[int | None, ...]]:
    program = load_golden(name).program
    executor = CpuExecutor(
        program=program,
        source=dict_source(golden_parameters(name)),
        max_num_batched_tokens=128,
        num_threads=1,
        **{"num_blocks": 600, **SIZES, **options},
    )
    return executor, tuple(group.sliding_window for group in program.kv_groups)


@pytest.mark.parametrize("name", BEAM_NAMES)
def test_the_cpu_executor_finds_the_answers_of_transformers_all_searches_at_once(name: str) -> None:
    goldens = load_beams(name)
    assert {golden.width for golden in goldens} == {2, 4, 6}
    executor, windows = make_cpu(name, dtype="float32", kv_dtype="float32")
    requests = [request_for(golden, str(number)) for number, golden in enumerate(goldens)]
    compare(goldens, run(executor, windows, requests))


@pytest.mark.parametrize("name", BEAM_NAMES)
def test_the_reference_executor_finds_the_answers_of_transformers(name: str) -> None:
    goldens = load_beams(name)[::9]
    program = load_golden(name).program
    executor = ReferenceExecutor(program=program, source=dict_source(golden_parameters(name)), num_blocks=600, **SIZES)
    windows = tuple(group.sliding_window for group in program.kv_groups)
    requests = [request_for(golden, str(number)) for number, golden in enumerate(goldens)]
    compare(goldens, run(executor, windows, requests))


def crowd(golden: BeamGolden) -> list[Request]:
    """Sampled requests of many lengths, some with several samples, and another search."""
    prompts = [tuple(golden.prompt_token_ids[:length]) for length in (1, 7, 20, 33, 50)]
    requests = [
        Request(f"o{k}", prompt, SamplingParams(n=k % 2 + 1, max_tokens=30), k, (), 0.0)
        for k, prompt in enumerate(prompts)
    ]
    other = SamplingParams(n=3, use_beam_search=True, max_tokens=20)
    return [*requests, Request("other", prompts[2], other, 0, (), 0.0)]


def room_for(request: Request, windows: tuple[int | None, ...]) -> int:
    """Blocks that the scheduler wants free before it lets the search begin."""
    kv = KVCacheManager(BlockPool(1, len(windows)), BLOCK_SIZE, windows, max_chunk_tokens=128)
    num_prompt = len(request.prompt_token_ids)
    num_tokens = num_prompt + request.max_tokens - 1
    siblings = request.sampling.num_samples - 1
    return kv.num_blocks_for(num_tokens) + siblings * kv.num_blocks_beside(num_prompt, num_tokens)


@pytest.mark.parametrize("name", ["llama-tied", "mistral-window", "qwen3-mostly-sliding"])
def test_a_search_is_bitwise_the_same_alone_among_others_and_preempted(name: str) -> None:
    golden = max(load_beams(name), key=lambda each: (each.width, len(each.prompt_token_ids)))

    def target() -> Request:
        return request_for(golden, "target", logprobs=3, min_tokens=12)

    executor, windows = make_cpu(name)
    alone = run(executor, windows, [target()])["target"]
    assert alone.max_rows == golden.width == len(alone.bits)
    executor, windows = make_cpu(name)
    among = run(executor, windows, [*crowd(golden), target()], max_num_batched_tokens=48)["target"]
    assert among.max_rows > golden.width + 5
    assert among.bits == alone.bits
    for caching in (True, False):
        executor, windows = make_cpu(name)
        settings = {"num_blocks": room_for(alone.request, windows) + 41 * len(windows), "watermark": 0.0}
        grower = Request("grower", (1, 2, 3), SamplingParams(n=40, max_tokens=24), 0, (), 0.0)
        pressed = run(executor, windows, [grower, target()], enable_prefix_caching=caching, **settings)["target"]
        assert pressed.request.num_preemptions > 0, "forty samples took a second block"
        assert pressed.bits == alone.bits
