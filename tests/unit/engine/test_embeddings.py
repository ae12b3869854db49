"""Requests that are pooled instead of answered, through the real scheduler: the vector of a prompt is the same alone, in
a crowd, in chunks, after a preemption and after a prefix hit, and each test asserts that this happened."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from octavo import LLM, InternalError, PoolingParams, SamplingParams
from octavo.core.scheduler_output import SchedulerOutput
from octavo.engine.engine import Engine, EngineRequest
from octavo.engine.mailbox import cost_bytes
from octavo.errors import BadRequest
from octavo.executors.fake import HIDDEN_SIZE, FakeExecutor
from octavo.outputs import SequenceDelta
from octavo.pooling_params import POOLINGS, Pooling
from support.engines import ask, make_engine, run

PROMPT = "an octavo is a sheet of paper folded three times into eight leaves"


def pooled(request_id: str, prompt: str, pooling: Pooling = "mean", **fields: object) -> EngineRequest:
    params = PoolingParams(pooling, **fields)  # type: ignore[arg-type]
    return EngineRequest(request_id, tuple(prompt.encode()), SamplingParams(max_tokens=0, pooling=params))


def vector(engine: Engine, request: EngineRequest, *others: EngineRequest) -> bytes:
    answers = run(engine, [*others, request])
    answer = answers[request.request_id, 0]
    assert (answer.finish_reason, answer.text, answer.token_ids) == ("stop", "", [])
    (delta,) = answer.deltas
    assert delta.embedding is not None
    return delta.embedding


class Watch:
    """The plans an engine's executor gets."""

    def __init__(self, engine: Engine) -> None:
        self.plans: list[SchedulerOutput] = []
        executor = engine.executor
        assert isinstance(executor, FakeExecutor)
        executor.on_step = self.plans.append

    def chunks(self, num_tokens: int) -> list[int]:
        """How the one row that began with so many tokens was run."""
        ids = {row.seq_id for plan in self.plans for row in plan.added if len(row.token_ids) == num_tokens}
        return [
            count
            for plan in self.plans
            for seq_id, count in zip(plan.seq_ids, plan.num_scheduled_tokens, strict=True)
            if seq_id in ids
        ]

    def num_starts(self, num_tokens: int) -> int:
        return sum(len(row.token_ids) == num_tokens for plan in self.plans for row in plan.added)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_is_the_same_alone_in_a_crowd_and_in_chunks(pooling: Pooling) -> None:
    alone = vector(make_engine(), pooled("a", PROMPT, pooling))
    assert len(alone) == 4 * HIDDEN_SIZE
    engine = make_engine(max_num_batched_tokens=12)
    watch = Watch(engine)
    others = [ask(f"other {n}", f"{n} " * (3 + n), max_tokens=20) for n in range(5)]
    assert vector(engine, pooled("a", PROMPT, pooling), *others, pooled("b", "z" + PROMPT, pooling)) == alone
    assert len(watch.chunks(len(PROMPT))) > 3
    assert any(len(plan.seq_ids) > 3 for plan in watch.plans)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_vector_survives_preemption(pooling: Pooling) -> None:
    alone = vector(make_engine(), pooled("a", PROMPT, pooling))
    engine = make_engine(num_blocks=20, max_model_len=80, max_num_batched_tokens=8, enable_prefix_caching=False)
    watch = Watch(engine)
    others = [ask(f"other {n}", f"{n}", max_tokens=30) for n in range(2)]
    assert vector(engine, pooled("a", PROMPT, pooling), *others) == alone
    assert engine.stats().num_preemptions > 0
    assert watch.num_starts(len(PROMPT)) > 1


def test_the_mean_takes_no_prefix_hits_and_leaves_blocks_for_others_and_the_last_takes_them() -> None:
    engine = make_engine()
    cached: dict[str, int] = {}
    found: dict[str, bytes | None] = {}
    for request in (
        pooled("mean", PROMPT),
        pooled("mean again", PROMPT),
        pooled("last", PROMPT, "last"),
        ask("text", PROMPT, max_tokens=2),
    ):
        last = run(engine, [request])[request.request_id, 0].deltas[-1]
        cached[request.request_id], found[request.request_id] = last.num_cached_tokens, last.embedding
        assert last.timings is not None
        assert last.timings.cache is not None
        assert (last.timings.cache.reason == "mean pooling") is request.request_id.startswith("mean")
    assert cached == {"mean": 0, "mean again": 0, "last": 64, "text": 64}
    assert found["mean"] == found["mean again"] != found["last"]
    assert found["last"] == vector(make_engine(), pooled("cold", PROMPT, "last"))


def test_a_prompt_of_the_whole_context_is_pooled_and_one_more_is_refused() -> None:
    engine = make_engine(max_model_len=64)
    assert vector(engine, pooled("a", "x" * 64))
    with pytest.raises(BadRequest, match="prompt has 65 tokens"):
        engine.add_request(pooled("b", "x" * 65))


def test_a_prompt_that_is_pooled_counts_as_one_and_draws_nothing() -> None:
    engine = make_engine()
    vector(engine, pooled("a", PROMPT))
    stats = engine.stats()
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (len(PROMPT), 0)
    assert stats.request_success["stop"] == 1
    (record,) = engine.describe("a", None)
    assert record.parameters["pooling"] == "mean"


def test_a_fault_ends_the_prompt_alone() -> None:
    engine = make_engine(fail_row=lambda row, _: "it broke" if row.token_ids[0] == ord("!") else None)
    answers = run(engine, [pooled("bad", "!oops"), pooled("good", PROMPT)])
    bad, good = answers["bad", 0].deltas[-1], answers["good", 0].deltas[-1]
    assert (bad.finish_reason, bad.error, bad.embedding) == ("error", "it broke", None)
    assert good.embedding is not None


def test_an_abort_frees_a_prompt_half_pooled() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add_request(pooled("a", PROMPT))
    engine.step()
    engine.abort("a")
    (delta,) = run(engine, [])["a", 0].deltas
    assert (delta.finish_reason, delta.embedding) == ("abort", None)
    assert vector(engine, pooled("b", PROMPT)) == vector(make_engine(), pooled("a", PROMPT))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 1}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"pooling": "mean"}, "pooling"),
    ],
)
def test_what_does_not_go_with_pooling_is_refused_by_name(fields: dict[str, object], named: str) -> None:
    with pytest.raises(BadRequest) as caught:
        SamplingParams(**({"max_tokens": 0, "pooling": PoolingParams()} | fields))  # type: ignore[arg-type]
    assert caught.value.param == named


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"pooling": "cls"}, "pooling"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"dimensions": 10**40}, "dimensions"),
        ({"normalize": 1}, "normalize"),
    ],
)
def test_wrong_pooling_is_refused_by_name(fields: dict[str, object], named: str) -> None:
    with pytest.raises(BadRequest) as caught:
        PoolingParams(**fields).check_against_model(HIDDEN_SIZE)  # type: ignore[arg-type]
    assert caught.value.param == named


def test_the_model_bounds_the_dimensions() -> None:
    engine = make_engine()
    with pytest.raises(BadRequest, match="have 16, lower it"):
        engine.add_request(pooled("a", PROMPT, dimensions=HIDDEN_SIZE + 1))
    with pytest.raises(BadRequest, match="no hidden state"):
        PoolingParams().check_against_model(0)


def test_an_unread_vector_has_its_price() -> None:
    plain = SequenceDelta("a", 0, "", ())
    assert cost_bytes(SequenceDelta("a", 0, "", (), embedding=b"x" * 4096)) == cost_bytes(plain) + 4096


# LLM.embed


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("fake", max_model_len=128, max_num_seqs=4) as llm:
        yield llm


def test_llm_embeds_texts_and_ids_in_their_order(llm: LLM) -> None:
    texts = [f"text number {n}" for n in range(9)]
    found = llm.embed(texts)
    assert [each.prompt_token_ids for each in found] == [llm.tokenizer.encode(text) for text in texts]
    assert len({tuple(each.embedding) for each in found}) == 9
    assert all(math.hypot(*each.embedding) == pytest.approx(1.0, abs=1e-6) for each in found)
    (by_ids,) = llm.embed(found[3].prompt_token_ids)
    assert by_ids.embedding == found[3].embedding
    (short,) = llm.embed(texts[0], dimensions=4)
    (raw,) = llm.embed(texts[0], dimensions=4, normalize=False)
    length = math.hypot(*raw.embedding)
    assert short.embedding == pytest.approx([value / length for value in raw.embedding], abs=1e-7)
    (last,) = llm.embed(texts[0], pooling="last")
    assert last.embedding != found[0].embedding


def test_llm_refuses_before_anything_runs(llm: LLM) -> None:
    for wrong in ({"dimensions": 17}, {"pooling": "cls"}):
        with pytest.raises(BadRequest):
            llm.embed("x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="empty"):
        llm.embed([[]])


def test_llm_raises_where_a_state_is_not_finite(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.executors.fake.hidden_of", lambda _: (math.nan,) * HIDDEN_SIZE)
    with pytest.raises(InternalError, match="hidden state holds NaN"):
        llm.embed("x")
