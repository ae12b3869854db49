"""Constrained answers through the engine: over the fake executor, and bit for bit over a small real model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from llguidance import LLParserLimits

from octavo.config import EngineConfig
from octavo.constraints import grammar as module
from octavo.constraints.grammar import Grammar
from octavo.constraints.table import ConstraintTable
from octavo.core.block import SeqId
from octavo.engine.build import build_engine
from octavo.engine.engine import EngineRequest
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams
from support.engines import Answers, ask, assert_drained, make_engine, run
from support.gguf_maker import tiny_tokens
from support.hf_folder import write_folder
from support.tiny_models import llama_config

DIGITS = GrammarSpec("regex", "[0-9]{3}-[0-9]{20,40}")
PERSON = GrammarSpec(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
            "required": ["name", "old"],
            "additionalProperties": False,
        }
    ),
    "none",
)
FREE = {"temperature": 1.0, "max_tokens": 40}


def mixed() -> list[EngineRequest]:
    """Constrained and free ones together, some with several samples."""
    return [
        ask("digits", "one", temperature=1.0, seed=3, n=2, max_tokens=60, grammar=DIGITS),
        ask("person", "two", temperature=1.0, seed=4, max_tokens=60, grammar=PERSON),
        ask("free", "three", seed=5, **FREE),
        ask("choice", "four", temperature=1.0, seed=6, n=3, grammar=GrammarSpec("choice", '["a", "bb", "bc"]')),
        ask("letters", "five", temperature=1.0, seed=7, max_tokens=30, allowed_token_ids=tuple(b"xyz")),
        ask("clean", "six", temperature=1.0, seed=8, max_tokens=60, bad_words=("a", "e", "q")),
    ]


def texts(answers: Answers) -> dict[tuple[str, int], tuple[str, object]]:
    return {key: (answer.text, answer.finish_reason) for key, answer in answers.items()}


def check_forms(answers: Answers) -> None:
    for index in range(2):
        assert re.fullmatch("[0-9]{3}-[0-9]{20,40}", answers["digits", index].text)
        assert answers["digits", index].finish_reason == "stop"
    found = json.loads(answers["person", 0].text)
    assert set(found) == {"name", "old"}
    for index in range(3):
        assert answers["choice", index].text in ("a", "bb", "bc")
        assert answers["choice", index].finish_reason == "stop"
    assert set(answers["letters", 0].text) <= set("xyz")
    assert not set(answers["clean", 0].token_ids) & set(b"aeq")


def test_each_answer_has_its_form_and_free_ones_are_what_they_are_alone() -> None:
    engine = make_engine()
    answers = run(engine, mixed())
    check_forms(answers)
    assert_drained(engine)
    assert texts(run(make_engine(), [ask("free", "three", seed=5, **FREE)])).items() <= texts(answers).items()


def test_preemption_and_little_memory_change_no_constrained_answer() -> None:
    expected = texts(run(make_engine(), mixed()))
    small = make_engine(num_blocks=20, max_num_batched_tokens=17)
    for request in mixed():
        small.check_request(request)  # compiles, so that the requests come in one order
    answers = run(small, mixed())
    assert small.stats().num_preemptions > 0
    assert texts(answers) == expected
    assert_drained(small)


def test_a_grammar_is_compiled_once_for_all_its_requests() -> None:
    engine = make_engine()
    run(engine, [ask(f"r{n}", "x", grammar=DIGITS, max_tokens=60) for n in range(5)])
    assert engine._compiler.num_compiled == 1
    assert len(engine._constraints) <= 5


def test_a_request_that_can_never_fit_is_refused_before_its_grammar_is_compiled() -> None:
    engine = make_engine(num_blocks=20)
    with pytest.raises(BadRequest, match="KV cache"):
        engine.add_request(ask("r", "x", grammar=DIGITS, max_tokens=200))
    assert not engine.has_unfinished


def test_a_request_that_waits_for_its_grammar_can_be_aborted() -> None:
    engine = make_engine()
    engine.add_request(ask("r", "x", grammar=DIGITS))
    assert engine.has_unfinished
    engine.abort("r")
    deltas = []
    while engine.has_unfinished:
        deltas += engine.step()
    assert [delta.finish_reason for delta in deltas] == ["abort"]
    assert_drained(engine)


def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone() -> None:
    engine = make_engine()
    answers = run(engine, [ask("bad", "x", grammar=GrammarSpec("regex", "(")), ask("good", "y", max_tokens=5)])
    assert answers["bad", 0].finish_reason == "error"
    assert answers["good", 0].finish_reason == "length"
    with pytest.raises(BadRequest, match="unclosed group"):
        engine.check_request(ask("bad", "x", grammar=GrammarSpec("regex", "(")))
    assert_drained(engine)


def test_a_grammar_that_breaks_on_the_way_ends_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    accept = ConstraintTable.accept

    def break_it(table: ConstraintTable, drawn: Iterable[tuple[SeqId, tuple[int, ...]]]) -> set[SeqId]:
        found = list(drawn)
        for seq_id, token_ids in found:
            if ord("-") in token_ids and seq_id in table._rows:
                table._rows[seq_id].error = "the grammar cannot go on: too complex"
        return accept(table, found)

    monkeypatch.setattr(ConstraintTable, "accept", break_it)
    answers = run(engine, mixed())
    for index in range(2):
        assert answers["digits", index].finish_reason == "error"
    assert answers["person", 0].finish_reason == "stop"
    assert_drained(engine)


def test_a_grammar_that_outgrows_the_narrow_limits_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows go on under the wide ones, in whatever step that comes, also after a preemption."""
    grows = GrammarSpec("grammar", "start: e\ne: e e e | e e | C\nC: /[a-z]/", is_ours=True)

    def requests() -> list[EngineRequest]:
        return [*mixed(), ask("grows", "six", temperature=1.0, seed=9, n=3, max_tokens=40, grammar=grows)]

    roomy = make_engine()
    expected = texts(run(roomy, requests()))
    assert roomy._compiler.compile(grows).is_narrow
    monkeypatch.setattr(module, "narrow_limits", lambda: LLParserLimits(max_items_in_row=30))
    widen, widened = Grammar.widen, list[Grammar]()

    def noted(grammar: Grammar) -> None:
        widened.append(grammar)
        widen(grammar)

    def read(grammar: Grammar, token_ids: Sequence[int]) -> None:
        if grammar in widened:
            num_read.append(len(token_ids))
        read_(grammar, token_ids)

    read_, num_read = Grammar.read, list[int]()
    monkeypatch.setattr(Grammar, "widen", noted)
    monkeypatch.setattr(Grammar, "read", read)
    small = make_engine(num_blocks=20, max_num_batched_tokens=17)
    answers = run(small, requests())
    assert small.stats().num_preemptions > 0
    assert len(widened) >= 2
    assert max(num_read) > 2, "in the midst of an answer"
    assert texts(answers) == expected
    assert {answers["grows", index].finish_reason for index in range(3)} <= {"length", "stop"}
    assert_drained(small)


def test_what_contradicts_a_grammar_is_refused() -> None:
    with pytest.raises(BadRequest, match="min_tokens"):
        SamplingParams(grammar=DIGITS, min_tokens=3)
    with pytest.raises(BadRequest, match="structured_outputs"):
        SamplingParams(grammar=DIGITS, use_beam_search=True)


def test_the_native_sampler_reads_the_bitmaps_as_the_oracle_does(tmp_path: Path) -> None:
    """Equal tokens from the reference and the cpu executor; two rows of a step have bitmaps, one has none."""
    folder = write_folder(tmp_path, config=llama_config(vocab_size=len(tiny_tokens()), tie_word_embeddings=True))
    answers = []
    for executor in ("reference", "cpu"):
        engine = build_engine(EngineConfig(model=str(folder), executor=executor, num_threads=1, max_model_len=128))
        requests = [
            EngineRequest(
                "a",
                (5, 9, 14),
                SamplingParams(temperature=0, max_tokens=8, allowed_token_ids=(4, 9, 20, 31), ignore_eos=True),
            ),
            EngineRequest(
                "b",
                (5, 9),
                SamplingParams(temperature=0.8, seed=2, max_tokens=8, allowed_token_ids=(32, 33), ignore_eos=True),
            ),
            EngineRequest("c", (5, 9, 14), SamplingParams(temperature=0, max_tokens=8)),
        ]
        answers.append({key: answer.token_ids for key, answer in run(engine, requests).items()})
        engine.close()
    assert answers[0] == answers[1]
    assert set(answers[1]["a", 0]) <= {4, 9, 20, 31}
    assert len(set(answers[1]["a", 0])) > 1
    assert set(answers[1]["b", 0]) == {32, 33}
    assert not set(answers[1]["c", 0]) <= {4, 9, 20, 31}
