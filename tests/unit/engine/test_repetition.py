"""An answer that runs in circles is found at the token that closes the last circle, never before."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.block import SeqId
from octavo.core.request import Request, SequenceUpdate
from octavo.decoding_spec import RepetitionDetection
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.repetition import RepetitionDetector
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.sampling_params import SamplingParams


def runs_in_circles(token_ids: Sequence[int], spec: RepetitionDetection) -> bool:
    """By the words of the definition."""
    for size in range(spec.min_pattern_size, spec.max_pattern_size + 1):
        length = size * spec.min_count
        if length <= len(token_ids):
            tail = list(token_ids[len(token_ids) - length :])
            if tail == tail[:size] * spec.min_count:
                return True
    return False


@settings(max_examples=200)
@given(
    token_ids=st.lists(st.integers(0, 2), max_size=40),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)).map(sorted),
    min_count=st.integers(2, 4),
    num_earlier=st.integers(0, 40),
)
def test_it_says_what_the_definition_says_at_every_token(
    token_ids: list[int], sizes: list[int], min_count: int, num_earlier: int
) -> None:
    spec = RepetitionDetection(max_pattern_size=sizes[1], min_count=min_count, min_pattern_size=sizes[0])
    earlier = token_ids[:num_earlier]
    detector = RepetitionDetector(spec, earlier)
    for place in range(len(earlier), len(token_ids)):
        assert detector.push(token_ids[place]) == runs_in_circles(token_ids[: place + 1], spec)


def test_an_answer_ends_there_with_a_reason_of_its_own_and_all_of_its_text() -> None:
    processor = OutputProcessor(FakeTokenizer())
    rule = RepetitionDetection(max_pattern_size=3, min_count=2)
    sampling = SamplingParams(max_tokens=20, stop=("abX",), repetition_detection=rule)
    processor.add(Request("r", (1,), sampling, seed=0, end_token_ids=(), arrival_time=0.0))
    text = ""
    for number, letter in enumerate(b"xyzabab", 1):
        outcome = processor.process(SequenceUpdate("r", SeqId(1), 0, (letter,)), 0.0)
        assert outcome is not None
        [delta] = outcome.deltas
        text += delta.text
        assert (delta.finish_reason is None) == (number < 7)
    assert text == "xyzabab", "what might have become a stop string is text after all"
    assert (delta.finish_reason, delta.stop_reason, outcome.must_stop) == ("stop", "repetition_detected", True)


def test_min_tokens_come_first() -> None:
    processor = OutputProcessor(FakeTokenizer())
    rule = RepetitionDetection(max_pattern_size=1, min_count=2)
    sampling = SamplingParams(max_tokens=20, min_tokens=5, repetition_detection=rule)
    processor.add(Request("r", (1,), sampling, seed=0, end_token_ids=(), arrival_time=0.0))
    ends = []
    for _ in range(5):
        outcome = processor.process(SequenceUpdate("r", SeqId(1), 0, (97,)), 0.0)
        assert outcome is not None
        ends.append(outcome.deltas[0].finish_reason)
    assert ends == [None] * 4 + ["stop"]
