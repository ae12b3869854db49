"""The engine over the real core and the fake executor, whose tokens depend on every block they are read through."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.engine import Engine, EngineRequest
from octavo.engine.step_times import STEP_PARTS
from octavo.errors import BadRequest, QueueFull
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.sampling_params import SamplingParams
from support.engines import EOS, Answers, ask, assert_drained, make_engine, run

PREFIX = "the same beginning "
Words = tuple[str, tuple[int, ...], object, object]  # text, tokens, finish reason, stop reason


def mixed_requests() -> list[EngineRequest]:
    """Twelve of all kinds, some with a common prefix."""
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 0.9, "seed": 7, "n": 3},
        {"max_tokens": 40},
        {"temperature": 1.0, "seed": 2**64 - 1, "max_tokens": 30},
        {"stop": ("e",), "max_tokens": 60},
        {"n": 2, "temperature": 0.5, "seed": -5, "stop": (" t", "글"), "max_tokens": 50},
    ]
    rng = random.Random(4)
    requests = []
    for number in range(12):
        text = (PREFIX if number % 2 else "") + "".join(rng.choice("abc 글🙂") for _ in range(rng.randint(1, 40)))
        requests.append(ask(f"r{number}", text, **kinds[number % len(kinds)]))
    return requests


def words(answers: Answers) -> dict[tuple[str, int], Words]:
    return {
        key: (answer.text, tuple(answer.token_ids), answer.finish_reason, answer.stop_reason)
        for key, answer in answers.items()
    }


def alone(requests: list[EngineRequest], **options: object) -> dict[tuple[str, int], Words]:
    """Each in an engine of its own, prompts whole, no cache."""
    expected: dict[tuple[str, int], Words] = {}
    for request in requests:
        engine = make_engine(enable_prefix_caching=False, **options)  # type: ignore[arg-type]
        expected |= words(run(engine, [request]))
    return expected


EXPECTED = alone(mixed_requests())


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("chunk", [1, 3, 17, 64])
@pytest.mark.parametrize("num_blocks", [32, 512])
def test_tokens_do_not_depend_on_company_chunks_or_pool(caching: bool, chunk: int, num_blocks: int) -> None:
    requests = mixed_requests()
    engine = make_engine(enable_prefix_caching=caching, max_num_batched_tokens=chunk, num_blocks=num_blocks)
    assert words(run(engine, requests)) == EXPECTED
    stats = engine.stats()
    assert (stats.num_block_copies > 0) is (chunk > 1)  # one token a step is one row: samples go one after another
    if num_blocks == 32 and chunk >= 17:
        assert stats.num_preemptions > 0
    if caching:
        again = [
            EngineRequest(f"again {request.request_id}", request.prompt_token_ids, request.sampling)
            for request in requests
        ]
        warm = words(run(engine, again))
        assert {(key[0].removeprefix("again "), key[1]): answer for key, answer in warm.items()} == EXPECTED
        assert engine.stats().num_prefix_cache_hits > stats.num_prefix_cache_hits


def test_samples_of_one_request_differ_and_are_numbered() -> None:
    answers = run(make_engine(), [ask("r", "prompt", temperature=1.0, seed=1, n=5, max_tokens=20)])
    assert sorted(answers) == [("r", index) for index in range(5)]
    assert len({answer.text for answer in answers.values()}) == 5
    assert all(answer.finish_reason == "length" for answer in answers.values())


def test_requests_without_a_seed_draw_the_same_in_engines_of_the_same_seed() -> None:
    requests = [ask(f"r{i}", "p", temperature=1.0) for i in range(3)]
    first, second = run(make_engine(seed=5), requests), run(make_engine(seed=5), requests)
    assert words(first) == words(second)
    assert words(run(make_engine(seed=6), requests)) != words(first)
    assert len({answer.text for answer in first.values()}) == 3


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 11), st.integers(0, 60), st.integers(1, 4), st.booleans(), st.integers(0, 3))
def test_stop_strings_cut_the_text_where_it_first_holds_one(
    which: int, begin: int, length: int, include: bool, min_tokens: int
) -> None:
    prompt = mixed_requests()[which].prompt_token_ids
    whole = run(make_engine(), [ask("r", prompt, max_tokens=60)])["r", 0]
    stop = whole.text[begin : begin + length].strip("\ufffd") or "zzz"
    asked = ask("r", prompt, max_tokens=60, stop=(stop,), include_stop_str_in_output=include, min_tokens=min_tokens)
    answer = run(make_engine(), [asked])["r", 0]
    # By definition: the first end of a match that a token after min_tokens completes.
    tokenizer, shown = FakeTokenizer(), ""
    for count in range(1, len(whole.token_ids) + 1):
        decoded = tokenizer.decode(whole.token_ids[:count])
        before, shown = shown, decoded.removesuffix("\ufffd") if count < len(whole.token_ids) else decoded
        ends = [end for end in range(len(before) + 1, len(shown) + 1) if shown[:end].endswith(stop)]
        if ends and count > min_tokens:
            cut = ends[0] if include else ends[0] - len(stop)
            assert (answer.text, answer.finish_reason, answer.stop_reason) == (shown[:cut], "stop", stop)
            assert answer.token_ids == whole.token_ids[:count]
            return
    assert (answer.text, answer.finish_reason) == (whole.text, "length")


def always(token_id: int, after: int = 0):  # type: ignore[no-untyped-def]
    """A language that says "a" `after` times, then only this token. The prompt has one token."""
    return lambda history, seed, index: token_id if len(history) > after else ord("a")


def test_the_end_token_ends_without_text_and_without_a_stop_reason() -> None:
    answer = run(make_engine(next_token=always(EOS, after=3)), [ask("r", "p")])["r", 0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("aaa", "stop", None)
    assert answer.token_ids == [97, 97, 97, EOS]


def test_ignore_eos_goes_on_to_the_length() -> None:
    answer = run(make_engine(next_token=always(EOS, after=3)), [ask("r", "p", ignore_eos=True)])["r", 0]
    assert (answer.text, answer.finish_reason, len(answer.token_ids)) == ("aaa", "length", 16)


def test_a_stop_token_is_named_and_shown_only_where_asked() -> None:
    for include, text in ((False, "aa"), (True, "aa!")):
        asked = ask("r", "p", stop_token_ids=(ord("!"),), include_stop_str_in_output=include)
        answer = run(make_engine(next_token=always(ord("!"), after=2)), [asked])["r", 0]
        assert (answer.text, answer.finish_reason, answer.stop_reason) == (text, "stop", ord("!"))


def test_min_tokens_masks_end_tokens_until_then() -> None:
    answer = run(make_engine(next_token=always(EOS)), [ask("r", "p", min_tokens=5)])["r", 0]
    assert answer.finish_reason == "stop"
    assert len(answer.token_ids) == 6
    assert answer.token_ids.index(EOS) == 5


def test_the_stop_string_may_be_the_very_first_token_with_logprobs() -> None:
    asked = ask("r", "p", stop=("a",), logprobs=2)
    answer = run(make_engine(next_token=always(EOS, after=9)), [asked])["r", 0]
    assert (answer.text, answer.finish_reason, answer.token_ids) == ("", "stop", [97])
    assert len(answer.deltas[0].logprobs) == 1


def test_an_unfinished_character_at_the_length_is_one_replacement() -> None:
    answer = run(make_engine(next_token=always("글".encode()[0])), [ask("r", "p", max_tokens=1)])["r", 0]
    assert (answer.text, answer.finish_reason) == ("\ufffd", "length")


def test_text_held_back_is_shown_when_the_length_ends_the_answer() -> None:
    answer = run(make_engine(next_token=always(ord("E"), after=2)), [ask("r", "p", max_tokens=3, stop=("END",))])[
        "r", 0
    ]
    assert answer.text == "aaE"
    assert [delta.text for delta in answer.deltas] == ["a", "a", "E"]


def test_prompt_logprobs_come_once_with_no_first_entry_also_without_an_answer() -> None:
    answer = run(make_engine(), [ask("r", "prompt", max_tokens=0, prompt_logprobs=1)])["r", 0]
    (delta,) = answer.deltas
    assert (delta.token_ids, delta.finish_reason) == ((), "length")
    assert delta.prompt_logprobs is not None
    assert delta.prompt_logprobs[0] is None
    assert [entry.token_id for entry in delta.prompt_logprobs[1:] if entry] == list(b"rompt")


# -- aborts and faults


@settings(deadline=None, max_examples=80, derandomize=True)
@given(st.data())
def test_aborts_anywhere_leave_the_others_and_the_pool_as_they_were(data: st.DataObject) -> None:
    requests = mixed_requests()
    chunk, num_blocks = data.draw(st.sampled_from([3, 17, 64])), data.draw(st.sampled_from([32, 64]))
    engine = make_engine(max_num_batched_tokens=chunk, num_blocks=num_blocks)
    at_step = {request.request_id: data.draw(st.integers(0, 120)) for request in requests if data.draw(st.booleans())}
    for request in requests:
        engine.add_request(request)
    answers, number = Answers(), 0
    while engine.has_unfinished:
        for request_id, step in at_step.items():
            if step == number:
                engine.abort(request_id)
                engine.abort(request_id)
        answers.take(engine.step())
        number += 1
    assert_drained(engine)
    for key, answer in answers.items():
        if answer.finish_reason == "abort":
            assert key[0] in at_step
            assert EXPECTED[key][0].startswith(answer.text)
        else:
            assert words(answers)[key] == EXPECTED[key]
    assert answers.keys() == EXPECTED.keys()


class BrokenTokenizer(FakeTokenizer):
    """Breaks on one token."""

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == 255:
            raise RuntimeError("no such bytes: <object at 0x7f0000000000>")
        return super().token_bytes(token_id)


@pytest.mark.parametrize("k", range(8))
@pytest.mark.parametrize("place", ["detokenising", "the model"])
def test_a_fault_in_request_k_of_8_ends_that_one_alone(k: int, place: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    requests = [ask(f"r{i}", f"{PREFIX}{i}", temperature=0.8, seed=i, n=1 + i % 2) for i in range(8)]
    expected = alone(requests)
    bad = requests[k]
    if place == "detokenising":
        requests[k] = ask(bad.request_id, bad.prompt_token_ids, n=bad.sampling.n, logit_bias={255: 100.0})
        engine = make_engine(tokenizer=BrokenTokenizer())
    else:
        engine = make_engine(
            fail_row=lambda row, history: (
                "logits are NaN"
                if row.token_ids[: len(bad.prompt_token_ids)] == bad.prompt_token_ids and len(history) > 25
                else None
            )
        )
    answers = run(engine, requests)
    for key, answer in answers.items():
        if key[0] == bad.request_id:
            assert answer.finish_reason == "error"
            assert answer.error
            assert "0x" not in answer.error
        else:
            assert words(answers)[key] == expected[key]
    assert answers.keys() == expected.keys()
    assert engine.stats().request_success["error"] == 1
    assert words(run(engine, [ask("after", "canary")])) == alone([ask("after", "canary")])


def test_a_share_of_the_cache_bounds_what_runs_at_once_for_one_client_alone() -> None:
    engine = make_engine(num_blocks=64, max_model_len=64)
    for number in range(6):
        asked = ask(f"q{number}", f"{number} is a prompt", max_tokens=20, ignore_eos=True)
        engine.add_request(replace(asked, client_id="q", kv_share=0.25, client_weight=2.0))
    engine.add_request(ask("free", "one more prompt", max_tokens=20))
    most = 0
    while engine.has_unfinished:
        engine.step()
        most = max(most, engine.stats().num_requests_running)
    assert most == 5, "four of q with four blocks each, and the other one"
    assert engine.stats().num_preemptions > 0, "as they grew, the last gave way"
    assert engine.stats().request_success["length"] >= 6
    with pytest.raises(BadRequest, match="kv_share"):
        engine.add_request(replace(ask("r", "p"), kv_share=0.0))


def test_an_executor_that_raises_is_fatal() -> None:
    def broken(history: tuple[int, ...], seed: int, index: int) -> int:
        raise OSError("the arena is gone")

    engine = make_engine(next_token=broken)
    engine.add_request(ask("r", "p"))
    with pytest.raises(OSError, match="arena"):
        engine.step()


def test_the_idle_check_counts_a_leak_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(strict=False)
    run(engine, [ask("r", "p")])

    def wrong() -> None:
        raise AssertionError("3 blocks are nobody's")

    monkeypatch.setattr(engine.scheduler, "check_integrity", wrong)
    engine.check_idle()
    engine.check_idle()  # nothing ran since: nothing to look at
    assert engine.stats().num_integrity_failures == 1
    assert [record.name for record in caplog.records] == ["octavo.engine.idle_check"]


# -- what comes in


@pytest.mark.parametrize(
    ("request_", "param", "words_"),
    [
        (ask("r", ""), "prompt", "empty"),
        (ask("r", [5, 260]), "prompt", "token 260, the vocabulary is 0 to 259"),
        (ask("r", [-1]), "prompt", "token -1"),
        (ask("r", ["a"]), "prompt", "whole numbers"),  # type: ignore[list-item]
        (ask("r", [True]), "prompt", "whole numbers"),
        (ask("r", "p", logit_bias={260: 1.0}), "logit_bias", "ends at 259"),
        (ask("r", "p", stop_token_ids=(260,)), "stop_token_ids", "ends at 259"),
        (ask("r", "p" * 256), "prompt", "prompt has 256 tokens, max_model_len is 256"),
        (ask("r", "p" * 300), "prompt", "prompt has 300 tokens"),
        (ask("r", "p" * 200, min_tokens=57, max_tokens=None), "min_tokens", "room for 56"),
        (ask("r", "p" * 257, max_tokens=0, prompt_logprobs=0), "prompt", "prompt has 257 tokens"),
    ],
)
def test_what_cannot_run_is_refused_at_once(request_: EngineRequest, param: str, words_: str) -> None:
    engine = make_engine()
    with pytest.raises(BadRequest, match=words_) as caught:
        engine.add_request(request_)
    assert caught.value.param == param
    assert not engine.has_unfinished
    assert len(run(engine, [ask("r", "p")])) == 1  # the id is free again


def test_max_tokens_is_clamped_to_the_room() -> None:
    for max_tokens in (None, 10_000):
        answer = run(make_engine(), [ask("r", "p" * 250, max_tokens=max_tokens)])["r", 0]
        assert (len(answer.token_ids), answer.finish_reason) == (6, "length")
    assert len(run(make_engine(), [ask("r", "p" * 255)])["r", 0].token_ids) == 1
    assert run(make_engine(), [ask("r", "p" * 256, max_tokens=0, prompt_logprobs=0)])["r", 0].token_ids == []


def test_a_prompt_that_no_pool_holds_is_refused_and_others_go_on() -> None:
    engine = make_engine(num_blocks=8)
    with pytest.raises(BadRequest, match="KV cache"):
        engine.add_request(ask("big", "p" * 40))
    assert len(run(engine, [ask("r", "p")])) == 1


def test_a_full_queue_refuses_and_an_id_in_use_too() -> None:
    engine = make_engine(max_queue=2)
    engine.add_request(ask("a", "p"))
    with pytest.raises(BadRequest, match="in use"):
        engine.add_request(ask("a", "p"))
    engine.add_request(ask("b", "p"))
    with pytest.raises(QueueFull):
        engine.add_request(ask("c", "p"))
    assert sorted(run(engine, [])) == [("a", 0), ("b", 0)]


def test_salts_part_the_prefix_cache() -> None:
    def cached(engine: Engine, request_id: str, salt: str) -> int:
        request = EngineRequest(request_id, tuple(b"p" * 40), SamplingParams(max_tokens=1), cache_salt=salt)
        return run(engine, [request])[request_id, 0].deltas[-1].num_cached_tokens

    engine = make_engine()
    assert [cached(engine, "1", "x"), cached(engine, "2", "y"), cached(engine, "3", "")] == [0, 0, 0]
    assert cached(engine, "4", "x") > 0


# -- what it tells


def test_timings_ride_on_the_last_delta_of_a_request_and_are_in_order() -> None:
    answers = run(make_engine(), [ask("r", "prompt", n=3, temperature=1.0, seed=3, stop=("e",)), ask("s", "q")])
    for request_id, n in (("r", 3), ("s", 1)):
        deltas = [delta for key, answer in answers.items() if key[0] == request_id for delta in answer.deltas]
        timings = [delta.timings for delta in deltas if delta.timings is not None]
        assert len(timings) == 1
        told = timings[0]
        assert told.first_scheduled_time is not None
        assert told.first_token_time is not None
        assert told.arrival_time < told.first_scheduled_time < told.first_token_time <= told.finished_time
        tokens = [len(answers[request_id, index].token_ids) for index in range(n)]
        assert (told.num_generation_tokens, told.max_num_generation_tokens) == (sum(tokens), max(tokens))
        assert (told.num_samples, told.max_tokens) == (n, 16)


def test_a_request_aborted_before_it_ran_has_no_times_but_its_end() -> None:
    engine = make_engine()
    engine.add_request(ask("r", "p", n=2))
    engine.abort("r")
    answers = Answers()
    answers.take(engine.step())
    assert [answer.finish_reason for answer in answers.values()] == ["abort", "abort"]
    told = answers["r", 1].deltas[-1].timings
    assert told is not None
    assert (told.first_scheduled_time, told.first_token_time, told.num_generation_tokens) == (None, None, 0)
    assert not engine.has_unfinished


def test_the_counters_add_up() -> None:
    engine = make_engine()
    requests = [ask("a", "p" * 20), ask("b", "q" * 9, n=2, temperature=1.0, seed=1), ask("c", "r", stop=("e",))]
    answers = run(engine, requests)
    engine.check_idle()
    stats = engine.stats()
    assert stats.num_prompt_tokens == 30
    assert stats.num_generation_tokens == sum(len(answer.token_ids) for answer in answers.values())
    assert sum(stats.request_success.values()) == 3
    assert sum(stats.iteration_tokens.counts) == stats.num_steps
    assert sum(stats.inter_token_latency_seconds.counts) == stats.num_generation_tokens - len(answers)
    assert 0 < stats.executor_seconds < stats.step_seconds
    assert tuple(stats.step_part_seconds) == STEP_PARTS
    assert min(stats.step_part_seconds.values()) >= 0
    assert sum(stats.step_part_seconds.values()) >= stats.step_seconds * (1 - 1e-9)
    assert stats.num_integrity_failures == 0
