"""`LLM` with the fake model: order, defaults, errors, interruption."""

import io
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import octavo
from octavo import LLM, BadRequest, ConfigError, ModelFileError, NotFound, SamplingParams
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.interrupt import Interrupt

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture
def llm():  # type: ignore[no-untyped-def]
    with LLM("fake", max_num_seqs=4, max_model_len=128) as made:
        yield made


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["one", "two", list(b"three"), "four"]
    lengths = [9, 3, 6, 1]
    outputs = llm.generate(prompts, [SamplingParams(max_tokens=n) for n in lengths])
    assert [output.prompt for output in outputs] == ["one", "two", None, "four"]
    assert [output.prompt_token_ids for output in outputs] == [
        list(b"one"),
        list(b"two"),
        list(b"three"),
        list(b"four"),
    ]
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


def test_more_prompts_than_the_engine_takes_at_once_are_fed_bit_by_bit() -> None:
    with LLM("fake", max_num_seqs=2, max_queue=1) as llm:
        texts = [output.outputs[0].text for output in llm.generate([f"p{i}" for i in range(30)], GREEDY)]
        assert texts == [llm.generate(f"p{i}", GREEDY)[0].outputs[0].text for i in range(30)]


def test_one_prompt_needs_no_list_and_ids_are_one_prompt(llm: LLM) -> None:
    assert llm.generate("ab", GREEDY)[0].outputs[0].text == llm.generate([97, 98], GREEDY)[0].outputs[0].text
    assert llm.generate([], GREEDY) == []


def test_chosen_answers_come_best_first_with_their_scores(llm: LLM) -> None:
    beams = SamplingParams(n=2, use_beam_search=True, beam_width=4, max_tokens=5, length_penalty=2.0, logprobs=0)
    best = SamplingParams(n=2, best_of=4, seed=1, max_tokens=5)
    searched, drawn, plain = llm.generate(["prompt"] * 3, [beams, best, SamplingParams(n=2, max_tokens=5)])
    for output, length_divisor in ((searched, 5**2), (drawn, 5)):
        assert [sample.index for sample in output.outputs] == [0, 1]
        scores = [sample.score for sample in output.outputs]
        assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
        for sample in output.outputs:
            assert sample.cumulative_logprob is not None
            assert sample.score == pytest.approx(sample.cumulative_logprob / length_divisor)
    assert all(len(sample.logprobs or []) == 5 for sample in searched.outputs)
    assert all(sample.logprobs is None and sample.finish_reason == "length" for sample in drawn.outputs)
    assert all(sample.score is None for sample in plain.outputs)
    with pytest.raises(BadRequest, match="set use_beam_search"):
        SamplingParams(beam_width=2)


def test_samples_logprobs_and_prompt_logprobs_are_collected(llm: LLM) -> None:
    asked = SamplingParams(n=3, seed=1, max_tokens=5, logprobs=1, prompt_logprobs=0)
    (output,) = llm.generate("prompt", asked)
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert all(len(sample.logprobs or []) == 5 for sample in output.outputs)
    assert output.prompt_logprobs is not None
    assert (len(output.prompt_logprobs), output.prompt_logprobs[0]) == (6, None)


def test_without_parameters_it_goes_on_until_the_context_is_full(llm: LLM) -> None:
    (output,) = llm.generate("p" * 100)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (28, "length")


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids[0] == 258
    both = llm.chat([messages, messages], GREEDY)
    assert [each.outputs[0].text for each in both] == [output.outputs[0].text] * 2


def test_a_bad_prompt_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="prompt has 200 tokens"):
        llm.generate(["fine", "p" * 200], GREEDY)
    assert llm.stats().num_steps == 0
    with pytest.raises(BadRequest, match="2 sampling_params for 1 prompts"):
        llm.generate("p", [GREEDY, GREEDY])
    with pytest.raises(BadRequest, match="empty"):
        llm.generate("", GREEDY)


def test_wrong_options_name_the_right_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean max_model_len"):
        LLM("fake", max_model_length=5)
    with pytest.raises(ModelFileError, match="smollm"):
        LLM("smolm")


def test_an_interrupt_ends_the_requests_between_steps_and_the_engine_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.generate("again", GREEDY)[0].outputs[0].text
    step, steps = llm._engine.step, 0

    def interrupted_step():  # type: ignore[no-untyped-def]
        nonlocal steps
        steps += 1
        if steps == 3:
            signal.raise_signal(signal.SIGINT)
        return step()

    monkeypatch.setattr(llm._engine, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b", "c"], SamplingParams(max_tokens=100, n=2))
    stats = llm.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_blocks_used) == (0, 0, 0)
    assert llm.generate("again", GREEDY)[0].outputs[0].text == expected


def test_a_second_interrupt_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_it_works_in_a_thread_that_is_not_the_main_one(llm: LLM) -> None:
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(llm.generate("p", GREEDY)[0].outputs[0].text))
    thread.start()
    thread.join()
    assert len(got[0]) > 0


def test_a_step_that_breaks_closes_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("the arena is gone")

    monkeypatch.setattr(llm._engine.executor, "execute", broken)
    with pytest.raises(OSError, match="arena"):
        llm.generate("p", GREEDY)
    with pytest.raises(BadRequest, match="closed"):
        llm.generate("p", GREEDY)
    llm.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called inside a test: what a fixture puts in place of stderr, pytest's capture replaces again."""
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    return stderr


def test_the_bar_counts_requests_on_a_terminal(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    llm.generate("one alone", GREEDY)
    llm.generate(["a", "b"], GREEDY, progress=False)
    assert terminal.getvalue() == ""
    llm.generate(["a", "b"], GREEDY)
    assert "requests" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()


def test_a_pipe_gets_no_bar_and_stdout_never(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert capsys.readouterr().err == ""
    llm.generate(["a", "b"], GREEDY, progress=True)
    assert capsys.readouterr().out == ""


def test_loading_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)

    def build(config: EngineConfig, report: Callable[[str, float], None]) -> Engine:
        report("packing the weights", 0.5)
        return build_engine(config)

    monkeypatch.setattr("octavo.engine.llm.build_engine", build)
    monkeypatch.setattr("octavo.engine.progress.QUIET_SECONDS", 0.0)
    with LLM("fake"):
        assert "packing the weights" in terminal.getvalue()


def test_the_info_tells_what_was_decided(llm: LLM) -> None:
    info = llm.info
    assert (info.model, info.executor, info.max_model_len) == ("fake", "fake", 128)
    assert info.kv_cache_tokens == info.num_blocks * 16
    assert info.num_full_length_sequences == 4.0


def test_the_public_names_are_these() -> None:
    assert octavo.__all__ == [
        "LLM", "BadRequest", "CompletionOutput", "ConfigError", "EmbeddingOutput", "EngineConfig", "EngineDead",
        "InternalError", "ModelFileError", "NotFound", "OctavoError", "PoolingParams", "QueueFull", "RequestError",
        "RequestOutput", "SamplingParams", "__version__",
    ]  # fmt: skip
    assert all(getattr(octavo, name) is not None for name in octavo.__all__)
    assert dir(octavo) == sorted(octavo.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = octavo.nothing


@pytest.mark.parametrize("prompts", [[1.5], [[1.5]], [[True]], [["a", 1]], [None], None, 5, {"a": 1}, b"ab"])
def test_a_prompt_that_is_neither_text_nor_token_ids_is_refused_before_anything_runs(llm: LLM, prompts: Any) -> None:
    with pytest.raises(BadRequest, match="prompt") as caught:
        llm.generate(prompts, GREEDY)
    assert caught.value.param == "prompt"
    assert llm.stats().num_steps == 0


def test_token_ids_may_be_numpys_and_in_a_tuple_or_an_array(llm: LLM) -> None:
    expected = llm.generate("ab", GREEDY)[0].outputs[0].text
    for prompt in ((97, 98), np.array([97, 98]), [np.array([97, 98], np.uint16)]):
        assert llm.generate(prompt, GREEDY)[0].outputs[0].text == expected


@pytest.mark.parametrize("params", [5, [5], [None], [GREEDY, GREEDY], {"n": 1}])
def test_parameters_of_another_kind_or_number_are_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(BadRequest, match="sampling_params"):
        llm.generate(["a"], params)


@pytest.mark.parametrize("messages", [None, "hi", [None], ["hi"], 5, {"role": "user", "content": "x"}])
def test_messages_of_another_kind_are_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(BadRequest, match="messages"):
        llm.chat(messages, GREEDY)


def test_a_fork_continues_an_answer_from_any_token_once_for_each_of_the_parameters(llm: LLM) -> None:
    drawn = SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True, n=2)
    (origin,) = llm.generate("a prompt of some blocks", drawn)
    params = [replace(drawn, n=1, max_tokens=15), SamplingParams(temperature=0.0, max_tokens=4), replace(drawn, seed=4)]
    same, greedy, other = llm.fork(origin, params, index=1, num_tokens=5)
    kept = origin.prompt_token_ids + origin.outputs[1].token_ids[:5]
    assert [each.prompt_token_ids for each in (same, greedy, other)] == [kept] * 3
    assert same.outputs[0].token_ids == origin.outputs[1].token_ids[5:]
    assert greedy.outputs[0].token_ids == llm.generate(kept, params[1])[0].outputs[0].token_ids
    assert [len(each.outputs) for each in (same, greedy, other)] == [1, 1, 2]
    assert same.num_cached_tokens >= len(kept) // 16 * 16
    (again,) = llm.fork(same.request_id, params[0], num_tokens=0)
    assert again.outputs[0].token_ids == same.outputs[0].token_ids
    assert llm.fork(origin, params[1])[0].prompt_token_ids == origin.prompt_token_ids + origin.outputs[0].token_ids


def test_a_fork_of_what_is_not_there_is_refused_by_name(llm: LLM) -> None:
    (origin,) = llm.generate("a prompt", GREEDY)
    for arguments, error, param in (
        ({"request": "nothing"}, NotFound, "id"),
        ({"request": 5}, BadRequest, "request"),
        ({"request": origin, "index": 1}, BadRequest, "index"),
        ({"request": origin, "index": "0"}, BadRequest, "index"),
        ({"request": origin, "num_tokens": 13}, BadRequest, "num_tokens"),
        ({"request": origin, "num_tokens": True}, BadRequest, "num_tokens"),
        ({"request": origin, "sampling_params": [GREEDY, 5]}, BadRequest, "sampling_params"),
        ({"request": origin, "sampling_params": SamplingParams(stop_token_ids=[10**6])}, BadRequest, "stop_token_ids"),
    ):
        with pytest.raises(error) as caught:
            llm.fork(**arguments)  # type: ignore[arg-type]
        assert caught.value.param == param
    assert llm.fork(origin, []) == []
    assert llm.stats().num_blocks_used == 0
