"""From tokens to text: what is given out, what is held back, and what becomes of it at the end."""

from __future__ import annotations

import pytest

from octavo.core.block import SeqId
from octavo.core.request import Request, SequenceUpdate
from octavo.engine.output_processor import OutputProcessor
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.outputs import FinishReason
from octavo.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("reason", "error", "last"),
    [("length", None, "lse"), ("error", "the logits hold NaN", "ls")],
    ids=["ends", "breaks"],
)
def test_half_a_stop_string_is_given_out_at_an_end_and_dropped_where_a_sample_breaks(
    reason: FinishReason, error: str | None, last: str
) -> None:
    processor = OutputProcessor(FakeTokenizer())
    sampling = SamplingParams(max_tokens=8, stop=("end",))
    processor.add(Request("r", (1,), sampling, seed=0, end_token_ids=(), arrival_time=0.0))
    text = ""
    for letter in b"lse":
        outcome = processor.process(SequenceUpdate("r", SeqId(1), 0, (letter,)), 0.0)
        assert outcome is not None
        text += "".join(delta.text for delta in outcome.deltas)
    assert text == "ls"
    outcome = processor.process(SequenceUpdate("r", SeqId(1), 0, (), finish_reason=reason, error=error), 0.0)
    assert outcome is not None
    [delta] = outcome.deltas
    assert text + delta.text == last
    assert (delta.finish_reason, delta.error) == (reason, error)
