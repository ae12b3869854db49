"""Branches of live and finished requests in the engine: the same tokens as a request of its own, and shared blocks."""

from __future__ import annotations

import pytest

from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, ForkPoint
from octavo.errors import BadRequest, NotFound
from octavo.outputs import SequenceDelta
from octavo.sampling_params import SamplingParams
from support.engines import EOS, Answers, ask, assert_drained, make_engine, run

PROMPT = "a prompt that fills a few blocks"  # of 4 tokens
DRAWN = {"temperature": 1.0, "seed": 11, "max_tokens": 40, "ignore_eos": True}


def fork(request_id: str, of: str, num_tokens: int | None, *, choice: int = 0, owner: str = "", **sampling: object) -> EngineRequest:  # fmt: skip
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 16, **sampling})  # type: ignore[arg-type]
    return EngineRequest(request_id, (), params, owner=owner, fork_of=ForkPoint(of, choice, num_tokens))


def until(engine: Engine, answers: Answers, num_tokens: int) -> None:
    """Steps until every answer seen has so many tokens."""
    while not answers or min(len(answer.token_ids) for answer in answers.values()) < num_tokens:
        answers.take(engine.step())


def finish(engine: Engine, answers: Answers) -> None:
    while engine.has_unfinished:
        answers.take(engine.step())
    assert_drained(engine)


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("num_tokens", [0, 1, 4, 7, 20])
def test_a_branch_with_the_origins_parameters_goes_on_as_the_origin_did(is_live: bool, num_tokens: int) -> None:
    engine, answers = make_engine(), Answers()
    penalties = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.1}
    engine.add_request(ask("origin", PROMPT, n=3, **DRAWN, **penalties))
    until(engine, answers, 21)
    if not is_live:
        finish(engine, answers)
    for sample in range(3):
        engine.add_request(fork(f"b{sample}", "origin", num_tokens, choice=sample, **DRAWN, **penalties))
    finish(engine, answers)
    assert len({tuple(answers["origin", sample].token_ids) for sample in range(3)}) == 3
    for sample in range(3):
        expected = answers["origin", sample].token_ids[num_tokens:]
        assert answers[f"b{sample}", 0].token_ids[: len(expected)] == expected


@pytest.mark.parametrize("caching", [True, False])
def test_branches_with_parameters_of_their_own_equal_requests_of_their_own(caching: bool) -> None:
    engine, answers = make_engine(enable_prefix_caching=caching), Answers()
    engine.add_request(ask("origin", PROMPT, max_tokens=60, ignore_eos=True))
    until(engine, answers, 10)
    kinds = [{}, {"temperature": 0.7, "seed": 3}, {"temperature": 1.2, "seed": 3, "n": 2}, {"min_tokens": 15}]
    for number, kind in enumerate(kinds):
        engine.add_request(fork(f"b{number}", "origin", 9, **kind))
    finish(engine, answers)
    prefix = [*PROMPT.encode(), *answers["origin", 0].token_ids[:9]]
    for number, kind in enumerate(kinds):
        alone = run(make_engine(enable_prefix_caching=False), [ask("alone", prefix, **kind)])
        for sample in range(kind.get("n", 1)):
            assert answers[f"b{number}", sample].token_ids == alone["alone", sample].token_ids


def test_a_branch_of_a_live_request_shares_every_block_and_copies_the_one_it_writes() -> None:
    engine, answers = make_engine(), Answers()
    engine.add_request(ask("origin", PROMPT, max_tokens=60, ignore_eos=True))
    until(engine, answers, 10)
    before = engine.stats()
    for number in range(3):
        engine.add_request(fork(f"b{number}", "origin", 7, ignore_eos=True, temperature=1.0, seed=number))
    answers.take(engine.step())
    shared = engine.stats()
    length = len(PROMPT) + 7
    assert length % 4
    for number in range(3):
        assert answers[f"b{number}", 0].deltas[0].num_cached_tokens == length - 1  # all but the one that must run
        record = engine.describe(f"b{number}", "")[0]
        assert record.cache is not None
        assert record.cache.num_hit_tokens_by_source == {"origin": length - 1}
    assert shared.num_blocks_used - before.num_blocks_used <= 4  # one each, and perhaps one of the origin's own
    finish(engine, answers)
    assert engine.stats().num_block_copies - before.num_block_copies >= 3


def test_evicted_blocks_are_computed_again_to_the_same_tokens() -> None:
    engine, answers = make_engine(num_blocks=32), Answers()
    engine.add_request(ask("origin", PROMPT, **DRAWN))
    finish(engine, answers)
    for number in range(4):
        engine.add_request(ask(f"other{number}", f"{number}" * 100, max_tokens=20, ignore_eos=True))
        finish(engine, answers)
    engine.add_request(fork("b", "origin", 10, **DRAWN))
    finish(engine, answers)
    record = engine.describe("b", "")[0]
    assert record.cache is not None
    assert (record.cache.reason, record.num_cached_tokens) == ("evicted", 0)
    assert answers["b", 0].token_ids[:30] == answers["origin", 0].token_ids[10:]


def test_an_origin_that_ends_or_is_aborted_before_its_branch_starts_changes_nothing() -> None:
    for ends in (False, True):
        engine, answers = make_engine(max_num_seqs=1), Answers()
        engine.add_request(ask("origin", PROMPT, **DRAWN))
        until(engine, answers, 12)
        engine.add_request(fork("b", "origin", 12, **DRAWN))
        if not ends:
            engine.abort("origin")
        finish(engine, answers)
        whole = run(make_engine(), [ask("origin", PROMPT, **DRAWN)])["origin", 0].token_ids
        assert answers["b", 0].token_ids[:28] == whole[12:]


def test_a_branch_of_a_branch_and_of_a_request_that_has_not_begun() -> None:
    engine, answers = make_engine(max_num_seqs=1), Answers()
    engine.add_request(ask("first", "in the way", max_tokens=5))
    engine.add_request(ask("origin", PROMPT, **DRAWN))
    engine.add_request(fork("b", "origin", None, **DRAWN))
    finish(engine, answers)
    origin = answers["origin", 0].token_ids
    assert answers["b", 0].token_ids == origin
    engine.add_request(fork("c", "b", 20, **DRAWN))
    finish(engine, answers)
    engine.add_request(fork("d", "c", 5, **DRAWN))
    finish(engine, answers)
    assert answers["c", 0].token_ids[:20] == origin[20:]
    assert answers["d", 0].token_ids[:15] == origin[25:]
    assert engine.describe("d", "")[0].num_given_tokens == 25


def test_a_branch_that_leaves_within_a_character_begins_with_it_whole() -> None:
    engine = make_engine(clock=lambda: 0.0)
    answers = run(engine, [ask("origin", "글", temperature=1.0, seed=4, max_tokens=200, ignore_eos=True)])
    tokens, text = answers["origin", 0].token_ids, answers["origin", 0].text
    cuts = [place for place in range(1, len(tokens)) if tokens[place] & 0xC0 == 0x80]
    assert len(cuts) >= 5
    for place in cuts[:20]:
        kept = bytes(tokens[:place]).decode(errors="ignore")
        branch = run(engine, [fork(f"b{place}", "origin", place, temperature=1.0, seed=4, max_tokens=200 - place,
                                   ignore_eos=True)])  # fmt: skip
        assert kept + branch[f"b{place}", 0].text == text


def test_stop_strings_are_looked_for_in_what_the_branch_says() -> None:
    def next_token(history: tuple[int, ...], seed: int, index: int) -> int:
        return b"the end."[(len(history) - 2) % 8]

    engine = make_engine(next_token=next_token)
    answers = run(engine, [ask("origin", "p:", max_tokens=8)])
    assert answers["origin", 0].text == "the end."
    answers = run(engine, [fork("b", "origin", 6, stop=("end",), max_tokens=20)])
    assert answers["b", 0].text == "d.the "
    answers = run(engine, [fork("c", "origin", 1, stop=("end",), min_tokens=8, max_tokens=20)])
    assert answers["c", 0].text == "he end.the "  # min_tokens counts the whole answer, as the origin would have


def test_all_so_far_of_a_finished_answer_leaves_out_its_end_token() -> None:
    def next_token(history: tuple[int, ...], seed: int, index: int) -> int:
        return EOS if len(history) == 5 else ord("a")

    engine = make_engine(next_token=next_token)
    assert run(engine, [ask("origin", "p:")])["origin", 0].token_ids == [97, 97, 97, EOS]
    assert engine.locate(ForkPoint("origin"), "").num_tokens == 3
    assert run(engine, [fork("b", "origin", None)])["b", 0].token_ids == [EOS]
    assert run(engine, [fork("c", "origin", 4, max_tokens=2)])["c", 0].token_ids == [97, 97]


def test_foreign_and_unknown_requests_and_a_full_context_are_refused_and_take_nothing() -> None:
    engine, answers = make_engine(max_model_len=48), Answers()
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    engine.add_request(EngineRequest("origin", tuple(PROMPT.encode()), params, owner="me"))
    until(engine, answers, 3)
    messages = set()
    for bad in (fork("x", "origin", 1), fork("x", "origin", 1, owner="them"), fork("x", "nothing", 1, owner="me")):
        for refuse in (engine.add_request, engine.check_request):
            with pytest.raises(NotFound) as caught:
                refuse(bad)
            messages.add(caught.value.message)
    assert len(messages) == 1
    finish(engine, answers)
    assert len(answers["origin", 0].token_ids) == 16
    with pytest.raises(BadRequest, match="branch off earlier") as full:
        engine.add_request(fork("x", "origin", 16, owner="me"))
    assert full.value.param == "num_tokens"
    engine.add_request(fork("y", "origin", 15, owner="me"))
    finish(engine, answers)
    assert len(answers["y", 0].token_ids) == 1


def test_a_branch_lives_in_the_cache_of_its_origin_whatever_it_is_sent_with() -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0.0, max_tokens=8)
    run(engine, [EngineRequest("origin", tuple(PROMPT.encode()), params, cache_salt="salted", tenant="t")])
    branch = EngineRequest("b", (), params, cache_salt="other", fork_of=ForkPoint("origin", 0, 8))
    deltas: list[SequenceDelta] = run(engine, [branch])["b", 0].deltas
    assert deltas[0].num_cached_tokens >= len(PROMPT)


def test_after_a_reset_nothing_computed_before_is_found() -> None:
    engine = make_engine()
    run(engine, [ask("a", PROMPT)])
    assert run(engine, [ask("b", PROMPT)])["b", 0].deltas[0].num_cached_tokens >= len(PROMPT) - 4
    cached = engine.stats().num_blocks_cached
    assert engine.reset_prefix_cache() == cached > 0
    assert engine.stats().num_blocks_cached == 0
    assert run(engine, [ask("c", PROMPT)])["c", 0].deltas[0].num_cached_tokens == 0


def test_the_records_of_ended_requests_are_dropped_though_nothing_runs() -> None:
    now = [0.0]
    engine = make_engine(clock=lambda: now[0])
    run(engine, [ask("a", PROMPT)])
    assert engine.describe("a", "")[0].state == "finished"
    now[0] = 600.0
    engine.rest()
    assert engine._records.num_kept == 0


def test_an_answer_that_best_of_chose_goes_on_as_it_was_drawn() -> None:
    engine = make_engine(clock=lambda: 0.0)
    drawn = DRAWN | {"best_of": 6, "n": 2}
    answers = run(engine, [ask("origin", PROMPT, **drawn)])
    plain = run(engine, [ask("plain", PROMPT, **DRAWN, n=6)])
    numbers = [
        next(i for i in range(6) if plain["plain", i].token_ids == answers["origin", rank].token_ids)
        for rank in range(2)
    ]
    assert numbers != [0, 1], "best_of must have chosen others for this to say anything"
    for rank in range(2):
        branch = run(engine, [fork(f"b{rank}", "origin", 9, choice=rank, **DRAWN)])[f"b{rank}", 0]
        assert branch.token_ids[:31] == answers["origin", rank].token_ids[9:]
    again = run(engine, [fork("c", "b1", 0, **DRAWN)])
    assert again["c", 0].token_ids[:31] == answers["origin", 1].token_ids[9:]


def test_beams_that_begin_at_a_live_answer_are_those_of_a_request_of_their_own() -> None:
    engine, answers = make_engine(), Answers()
    engine.add_request(ask("origin", PROMPT, max_tokens=60, ignore_eos=True))
    until(engine, answers, 10)
    beams = {"n": 2, "use_beam_search": True, "beam_width": 4, "max_tokens": 12, "ignore_eos": True}
    engine.add_request(fork("b", "origin", 9, **beams))
    finish(engine, answers)
    prefix = [*PROMPT.encode(), *answers["origin", 0].token_ids[:9]]
    own = run(make_engine(enable_prefix_caching=False), [ask("own", prefix, **beams)])
    for index in range(2):
        assert answers["b", index].token_ids == own["own", index].token_ids
    after = run(engine, [fork("c", "b", 5, choice=1)])["c", 0]
    assert after.token_ids == run(make_engine(), [ask("d", [*prefix, *own["own", 1].token_ids[:5]])])["d", 0].token_ids
