"""Branches with the real model, bit for bit: tokens and log-probabilities are those of a request of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.outputs import TokenLogprobs
from octavo.sampling_params import SamplingParams

pytestmark = pytest.mark.model

PROMPT = "An octavo is a sheet of paper folded three times into eight leaves. Its inventor, Aldus Manutius, wanted books that"
DRAWN: dict[str, Any] = {"temperature": 0.9, "seed": 20, "ignore_eos": True, "logprobs": 5, "frequency_penalty": 0.4}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 14, "ignore_eos": True, "logprobs": 5},
    {"temperature": 1.3, "seed": 4, "top_p": 0.9, "max_tokens": 14, "ignore_eos": True, "logprobs": 5},
    {"temperature": 0.7, "seed": 4, "n": 2, "max_tokens": 14, "ignore_eos": True, "logprobs": 5},
]
KEPT = 21  # of the answer: with this prompt in the middle of a block, which a test asserts


@dataclass
class Said:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0


class Asked(dict[tuple[str, int], Said]):
    """What was said so far, by (request id, sample)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def step(self) -> None:
        for delta in self.engine.step():
            said = self.setdefault((delta.request_id, delta.index), Said())
            said.token_ids += delta.token_ids
            said.logprobs += delta.logprobs
            said.num_cached_tokens = delta.num_cached_tokens
            assert delta.finish_reason in (None, "length"), delta.error

    def finish(self) -> None:
        while self.engine.has_unfinished:
            self.step()
        self.engine.scheduler.check_integrity()
        assert self.engine.stats().num_blocks_used == 0


@pytest.fixture(scope="module")
def fresh(smollm2_path: Path) -> Iterator[Engine]:
    """For requests of their own: nothing cached, nothing shared."""
    engine = build_engine(config(smollm2_path, enable_prefix_caching=False))
    yield engine
    engine.close()


def config(path: Path, **options: Any) -> EngineConfig:
    return EngineConfig(model=str(path), max_model_len=512, max_num_seqs=8, **options)


def prompt_ids(engine: Engine) -> tuple[int, ...]:
    return tuple(engine.tokenizer.encode(PROMPT))


def check_branches(engine: Engine, fresh: Engine, asked: Asked) -> None:
    """Branches of "origin", whose answer is whole by now, against the origin and against requests of their own."""
    origin = asked["origin", 0]
    same = asked["same", 0]
    num_equal = len(origin.token_ids) - KEPT
    assert num_equal >= 20
    assert same.token_ids[:num_equal] == origin.token_ids[KEPT:]
    assert same.logprobs[:num_equal] == origin.logprobs[KEPT:]
    prefix = (*prompt_ids(engine), *origin.token_ids[:KEPT])
    alone = Asked(fresh)
    for number, kind in enumerate(KINDS):
        fresh.add_request(EngineRequest(f"b{number}", prefix, SamplingParams(**kind)))
        alone.finish()
        for sample in range(kind.get("n", 1)):
            branch, own = asked[f"b{number}", sample], alone[f"b{number}", sample]
            assert (branch.token_ids, branch.logprobs) == (own.token_ids, own.logprobs)
    assert len({tuple(said.token_ids[:14]) for said in asked.values()}) == len(asked), "the branches said the same"


def add_branches(engine: Engine, kept: int = KEPT) -> None:
    point = ForkPoint("origin", 0, kept)
    engine.add_request(EngineRequest("same", (), SamplingParams(**DRAWN, max_tokens=40), fork_of=point))
    for number, kind in enumerate(KINDS):
        engine.add_request(EngineRequest(f"b{number}", (), SamplingParams(**kind), fork_of=point))


def test_branches_of_a_live_request_share_its_blocks_and_change_nothing(smollm2_path: Path, fresh: Engine) -> None:
    engine = build_engine(config(smollm2_path))
    asked = Asked(engine)
    engine.add_request(EngineRequest("origin", prompt_ids(engine), SamplingParams(**DRAWN, max_tokens=60)))
    while not asked or len(asked["origin", 0].token_ids) < KEPT + 3:
        asked.step()
    length = len(prompt_ids(engine)) + KEPT
    assert length % 16, "the branch must leave within a block"
    before = engine.stats()
    add_branches(engine)
    asked.step()
    during = engine.stats()
    num_branches = 1 + len(KINDS)
    assert during.num_blocks_shared >= length // 16
    assert during.num_block_copies - before.num_block_copies >= num_branches
    assert (
        during.num_blocks_used - before.num_blocks_used <= num_branches + 2
    )  # a copy each; sample 2; the origin's own
    asked.finish()
    for name in ("same", *(f"b{number}" for number in range(len(KINDS)))):
        assert asked[name, 0].num_cached_tokens == length - 1
        [record] = engine.describe(name, "")
        assert record.cache is not None
        assert record.cache.num_hit_tokens_by_source == {"origin": length - 1}
    check_branches(engine, fresh, asked)
    engine.close()


@pytest.mark.parametrize("evict", [False, True])
def test_branches_of_a_finished_request_are_found_or_computed_again(
    smollm2_path: Path, fresh: Engine, evict: bool
) -> None:
    engine = build_engine(config(smollm2_path, num_gpu_blocks_override=34))
    asked = Asked(engine)
    engine.add_request(EngineRequest("origin", prompt_ids(engine), SamplingParams(**DRAWN, max_tokens=60)))
    asked.finish()
    if evict:
        others = Asked(engine)
        for number in range(2):
            other = tuple(1000 + number + place for place in range(400))
            engine.add_request(EngineRequest(f"other{number}", other, SamplingParams(max_tokens=1)))
            others.finish()
    add_branches(engine)
    asked.finish()
    [record] = engine.describe("same", "")
    assert record.cache is not None
    length = len(prompt_ids(engine)) + KEPT
    if evict:
        assert (record.cache.reason, record.num_cached_tokens) == ("evicted", 0)
    else:
        assert record.num_cached_tokens == length // 16 * 16
    check_branches(engine, fresh, asked)
    engine.close()
