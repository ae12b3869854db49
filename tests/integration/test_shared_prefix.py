"""Samples of one long prompt read it together, and each is what it is alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams

pytestmark = pytest.mark.model

TEXT = "In the beginning the sheet was folded once, and twice, and a third time; " * 24
NUM_SAMPLES, NUM_TOKENS = 5, 6


def test_samples_of_a_long_prompt_are_served_together(smollm2_path: Path) -> None:
    questions = [f"{TEXT} What came of fold {number}?" for number in range(NUM_SAMPLES)]
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(str(smollm2_path), max_model_len=1024, max_num_seqs=8, num_threads=2) as llm:
        assert len(llm.tokenizer.encode(TEXT)) > 256
        alone = [llm.generate(question, sampling)[0].outputs[0].token_ids for question in questions]
        assert llm.stats().num_shared_queries == 0
        together = [output.outputs[0].token_ids for output in llm.generate(questions, sampling)]
        assert together == alone
        assert llm.stats().num_shared_queries >= NUM_SAMPLES * (NUM_TOKENS - 1)
