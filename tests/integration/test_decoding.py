"""Decoding controls through the engine: the same answers with little memory as with much, alone as in a crowd."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.decoding_spec import RepetitionDetection, ThinkingBudget
from octavo.engine import frames
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine, EngineRequest
from octavo.engine.engine_request import ForkPoint
from octavo.executors.fake import hashed_token
from octavo.outputs import NOTHING_TO_DRAW_CODE, TokenLogprobs
from octavo.sampling_params import SamplingParams
from support.engines import Answers, ask, assert_drained, make_engine, run
from support.gguf_maker import tiny_tokens
from support.hf_folder import write_folder
from support.tiny_models import llama_config

END_OF_PROMPT = ord("?")
OPENING = b"<think>"
DRAWN = {"temperature": 1.0, "max_tokens": 48}


def thinker(history: tuple[int, ...], seed: int, index: int) -> int:
    """Opens the block, then thinks letters for ever: it closes nothing by itself."""
    num_said = len(history) - history.index(END_OF_PROMPT) - 1
    return OPENING[num_said] if num_said < len(OPENING) else 97 + hashed_token(history, seed, index) % 26


def circler(history: tuple[int, ...], seed: int, index: int) -> int:
    """Five letters by chance, then the same four again and again."""
    num_said = len(history) - history.index(END_OF_PROMPT) - 1
    return 97 + (hashed_token(history, seed, index) % 20 if num_said < 5 else 22 + num_said % 4)


def budget(max_tokens: int, *, is_open: bool = False) -> ThinkingBudget:
    return ThinkingBudget(max_tokens, "<think>", "</think>", tuple(b"</think>"), is_open)


def thinkers() -> list[EngineRequest]:
    """Some with a budget, with several samples each, and some without."""
    return [
        ask("short", "one?", seed=3, n=3, thinking_token_budget=budget(4), **DRAWN),
        ask("none", "two?", seed=4, thinking_token_budget=budget(0), **DRAWN),
        ask("free", "three?", seed=5, n=2, **DRAWN),
        ask("long", "four?", seed=6, n=2, thinking_token_budget=budget(20), **DRAWN),
        ask("lists", "five?", seed=7, thinking_token_budget=budget(6), bad_words=("</think>", "e"), **DRAWN),
        ask("more", "six?", seed=8, thinking_token_budget=budget(400), **DRAWN),
    ]


def circlers() -> list[EngineRequest]:
    rule = RepetitionDetection(max_pattern_size=6, min_count=3)
    return [
        ask("circle", "one?", seed=3, n=3, repetition_detection=rule, **DRAWN),
        ask("free", "two?", seed=4, n=2, **DRAWN),
        ask("wide", "three?", seed=5, repetition_detection=RepetitionDetection(8, 2, 7), **DRAWN),
        ask("late", "four?", seed=6, min_tokens=30, repetition_detection=rule, **DRAWN),
        ask("stops", "five?", seed=7, repetition_detection=rule, stop=("wxyzwxyz!",), **DRAWN),
    ]


def whole(answers: Answers) -> dict[tuple[str, int], tuple[str, list[int], str | None, str | int | None]]:
    return {key: (each.text, each.token_ids, each.finish_reason, each.stop_reason) for key, each in answers.items()}


def test_only_the_thinking_that_has_a_budget_is_closed_and_just_there() -> None:
    answers = run(make_engine(next_token=thinker), thinkers())
    for name, most in (("short", 4), ("none", 0), ("long", 20), ("lists", 6)):
        for (request_id, _), answer in answers.items():
            if request_id == name:
                thought, _, rest = answer.text.removeprefix("<think>").partition("</think>")
                assert len(thought) == most
                assert len(rest) == 48 - len(OPENING) - most - len("</think>")
                assert "<" not in rest
    for name in ("free", "more"):
        assert "</think>" not in answers[name, 0].text
        assert len(answers[name, 0].token_ids) == 48


def test_an_answer_in_circles_ends_at_the_third_and_no_other_does() -> None:
    answers = run(make_engine(next_token=circler), circlers())
    for index in range(3):
        answer = answers["circle", index]
        assert answer.finish_reason == "stop"
        assert answer.stop_reason == "repetition_detected"
        assert len(answer.token_ids) == 5 + 3 * 4
        assert answer.text[5:9] * 3 == answer.text[5:]
    assert answers["free", 0].finish_reason == "length"
    assert answers["wide", 0].stop_reason == "repetition_detected", "two eights are four fours"
    assert len(answers["wide", 0].token_ids) == 5 + 2 * 8
    assert len(answers["late", 0].token_ids) == 30
    assert answers["stops", 0].text == bytes(answers["stops", 0].token_ids).decode(), "nothing is held back at the end"


@pytest.mark.parametrize("kind", ["thinking", "circles"])
def test_preemption_and_little_memory_change_no_answer(kind: str) -> None:
    next_token, requests = (thinker, thinkers) if kind == "thinking" else (circler, circlers)
    expected = whole(run(make_engine(next_token=next_token), requests()))
    small = make_engine(next_token=next_token, num_blocks=26, max_num_batched_tokens=17)
    answers = run(small, requests())
    assert small.stats().num_preemptions > 0
    assert whole(answers) == expected
    for request in requests():  # and each alone
        alone = whole(run(make_engine(next_token=next_token), [request]))
        assert alone.items() <= expected.items()


def test_a_branch_goes_on_in_the_circles_of_its_origin() -> None:
    engine = make_engine(next_token=circler)
    run(engine, [ask("call.0", "one?", seed=3, max_tokens=5 + 10)])
    rule = RepetitionDetection(max_pattern_size=4, min_count=3)
    branch = EngineRequest(
        "branch", (), SamplingParams(temperature=0.0, max_tokens=20, repetition_detection=rule),
        fork_of=ForkPoint("call", 0, 15),
    )  # fmt: skip
    answer = run(engine, [branch])["branch", 0]
    assert answer.stop_reason == "repetition_detected"
    assert len(answer.token_ids) == 2, "ten of the twelve tokens were the origin's"


def test_frames_carry_all_of_it_bit_for_bit() -> None:
    sampling = SamplingParams(
        logprobs=0, logprob_token_ids=(5, 3), repetition_detection=RepetitionDetection(8, 3, 2),
        thinking_token_budget=ThinkingBudget(7, "<think>", "</think>\n", (1, 2, 3), is_open=True, may_reopen=True),
    )  # fmt: skip
    message = frames.Add(EngineRequest("id", (1,), sampling))
    assert frames.decode_to_engine(frames.encode(message)[frames.HEADER_BYTES :]) == message


def test_a_record_tells_the_controls_in_numbers() -> None:
    engine = make_engine(next_token=thinker)
    rule = RepetitionDetection(4, 3)
    run(engine, [ask("call.0", "one?", thinking_token_budget=budget(4), repetition_detection=rule)])
    [record] = engine.describe("call", None)
    assert record.parameters["thinking_token_budget"] == 4
    assert record.parameters["repetition_detection"] == "1 to 4 tokens, 3 times"
    assert record.parameters["num_logprob_token_ids"] == 0


def real_engine(folder: Path, executor: str) -> Engine:
    return build_engine(EngineConfig(model=str(folder), executor=executor, num_threads=1, max_model_len=128))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = llama_config(vocab_size=len(tiny_tokens()), tie_word_embeddings=True)
    return write_folder(tmp_path_factory.mktemp("tiny"), config=config)


def entries(answers: Answers, key: tuple[str, int]) -> list[TokenLogprobs]:
    return [entry for delta in answers[key].deltas for entry in delta.logprobs]


@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_chosen_tokens_have_the_very_floats_of_the_best_and_of_the_drawn(folder: Path, executor: str) -> None:
    engine = real_engine(folder, executor)
    fields = {"temperature": 0.9, "seed": 4, "max_tokens": 12, "ignore_eos": True}
    ids = tuple(range(128))
    requests = [
        ask("best", (5, 9, 14), logprobs=20, n=2, **fields),
        ask("chosen", (5, 9, 14), logprobs=0, logprob_token_ids=ids, n=2, **fields),
        ask("other", (7, 8), logprobs=3, **fields),
        ask("plain", (5, 9), **fields),
    ]
    answers = run(engine, requests)
    assert not engine.executor.last_logits  # type: ignore[attr-defined]
    num_equal = 0
    for index in range(2):
        assert answers["chosen", index].token_ids == answers["best", index].token_ids
        for best, chosen in zip(entries(answers, ("best", index)), entries(answers, ("chosen", index)), strict=True):
            assert chosen.logprob == best.logprob
            assert {token_id for token_id, _ in chosen.top} == set(ids)
            assert list(chosen.top) == sorted(chosen.top, key=lambda entry: (-entry[1], entry[0]))
            known = dict(best.top) | {best.token_id: best.logprob}
            for token_id, logprob in chosen.top:
                if token_id in known:
                    assert logprob == known[token_id]
                    num_equal += 1
    assert num_equal > 100
    assert all(len(entry.top) == 3 for entry in entries(answers, ("other", 0)))
    assert not entries(answers, ("plain", 0))
    engine.close()


def test_a_prompts_floats_are_those_of_the_answer_it_repeats(folder: Path) -> None:
    """Drawn one by one or scored in one go: one kernel made both, so lm-eval may compare them with ==."""
    engine = real_engine(folder, "cpu")
    prompt = (5, 9, 14)
    drawn = run(engine, [ask("a", prompt, logprobs=4, max_tokens=10, ignore_eos=True)])
    said = drawn["a", 0].token_ids
    scored = run(engine, [ask("b", (*prompt, *said), max_tokens=0, prompt_logprobs=4)])
    told = scored["b", 0].deltas[0].prompt_logprobs
    assert told is not None
    assert list(told[len(prompt) :]) == entries(drawn, ("a", 0))
    engine.close()


@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_a_request_that_rules_every_token_out_is_told_so_and_ends_alone(folder: Path, executor: str) -> None:
    engine = real_engine(folder, executor)
    [end] = engine.info.eos_token_ids
    requests = [
        ask("nothing", (5, 9), max_tokens=4, min_tokens=2, allowed_token_ids=(end,)),
        ask("good", (5, 9), max_tokens=4, ignore_eos=True),
    ]
    answers = run(engine, requests)
    [last] = answers["nothing", 0].deltas
    assert (last.finish_reason, last.error_code) == ("error", NOTHING_TO_DRAW_CODE)
    assert answers["good", 0].finish_reason == "length"
    assert_drained(engine)
    engine.close()


def test_thinking_is_closed_alike_by_the_native_sampler_and_the_oracle(folder: Path) -> None:
    said = []
    for executor in ("reference", "cpu"):
        engine = real_engine(folder, executor)
        closing = ThinkingBudget(5, "<think>", "</think>", (20, 31, 4), is_open=True)
        fields = {"max_tokens": 16, "ignore_eos": True}
        requests = [
            ask("a", (5, 9, 14), thinking_token_budget=closing, **fields),
            ask("b", (5, 9, 14), **fields),
            ask("c", (7, 3), n=2, temperature=0.8, seed=2, thinking_token_budget=closing, **fields),
        ]
        answers = run(engine, requests)
        said.append({key: answer.token_ids for key, answer in answers.items()})
        engine.close()
    assert said[0]["a", 0][:8] == said[1]["a", 0][:8]
    assert said[0]["a", 0][:5] == said[0]["b", 0][:5]
    assert said[0]["a", 0][5:8] == [20, 31, 4]
    for index in range(2):
        assert said[0]["c", index][5:8] == [20, 31, 4]


@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_on_every_path_a_tokens_own_float_is_its_entry_among_the_best(folder: Path, executor: str) -> None:
    engine = real_engine(folder, executor)
    told = {"max_tokens": 10, "logprobs": 20, "ignore_eos": True}
    requests = [
        ask("greedy", (5, 9, 14), **told),
        ask("samples", (5, 9, 14), temperature=1.0, seed=2, n=3, prompt_logprobs=20, **told),
        ask("best", (7, 8), temperature=1.0, seed=3, n=2, best_of=4, **told),
        ask("beams", (5, 9), use_beam_search=True, n=2, beam_width=3, **told),
        ask("narrowed", (5, 9, 14), temperature=1.5, seed=4, bad_words=("a", "e"), repetition_penalty=1.3, **told),
    ]
    answers = run(engine, requests)
    num_in_top = 0
    for key, answer in answers.items():
        prompts = [each for delta in answer.deltas for each in (delta.prompt_logprobs or ())[1:]]
        found = [*entries(answers, key), *(each for each in prompts if each is not None)]
        assert len(found) >= 10
        for entry in found:
            top = dict(entry.top)
            assert entry.logprob == top.get(entry.token_id, entry.logprob)
            num_in_top += entry.token_id in top
    assert num_in_top > 40
    engine.close()
