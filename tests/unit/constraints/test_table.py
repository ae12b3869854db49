"""What breaks in one row's constraints is told as that row's failure, and none of it escapes into the step."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

from octavo.constraints.constraint import Bitmap, ConstraintError
from octavo.constraints.grammar import GrammarCompiler
from octavo.constraints.table import TOO_SLOW, ConstraintTable
from octavo.core.block import BlockId, SeqId
from octavo.core.scheduler_output import AddedRow, SchedulerOutput
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.sampling_params import SamplingParams

VOCAB = FakeTokenizer.vocab_size
pytestmark = pytest.mark.security("S10")

GOOD, BAD = SeqId(1), SeqId(2)
SPEC = GrammarSpec("regex", "[0-9]+")


class Breaks:
    """A constraint that raises in one place."""

    is_over = False

    def __init__(self, place: str, error: Exception) -> None:
        self._place, self._error = place, error

    def narrow(self, bitmap: Bitmap) -> None:
        bitmap.fill(0)
        if self._place == "narrow":
            raise self._error

    def accept(self, token_id: int) -> None:
        if self._place == "accept":
            raise self._error


class Compiler(GrammarCompiler):
    def __init__(self, place: str, error: Exception) -> None:
        super().__init__(FakeTokenizer(), VOCAB, [257])
        self._place, self._fault = place, error

    def compile(self, spec: GrammarSpec) -> Any:
        if self._place == "compile":
            raise self._fault
        return Breaks(self._place, self._fault)


def added(seq_id: SeqId, tokens: tuple[int, ...], **sampling: Any) -> AddedRow:
    return AddedRow(
        seq_id=seq_id,
        token_ids=tokens,
        num_prompt_tokens=1,
        block_tables=((BlockId(int(seq_id)),),),
        sampling=SamplingParams(**sampling),
        seed=0,
        sample_index=0,
        end_token_ids=(),
        num_top=None,
    )


def plan(*rows: AddedRow) -> SchedulerOutput:
    return SchedulerOutput(
        step=0,
        removed=(),
        added=rows,
        block_updates=(),
        copies=(),
        seq_ids=tuple(row.seq_id for row in rows),
        num_computed_tokens=tuple(0 for _ in rows),
        num_scheduled_tokens=tuple(len(row.token_ids) for row in rows),
        num_samples=tuple(1 for _ in rows),
        first_write=tuple(0 for _ in rows),
        prompt_logprobs={},
    )


@pytest.mark.parametrize("place", ["compile", "narrow", "accept"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConstraintError("the grammar cannot go on"), "the grammar cannot go on"),
        (BadRequest("look-around is not supported"), "look-around is not supported"),
        (RuntimeError("a panic at 0x7f00deadbeef in /secret"), "what the answer must look like met a fault"),
        (MemoryError(), "what the answer must look like met a fault"),
    ],
)
def test_a_row_that_comes_back_with_a_constraint_that_breaks_fails_alone(
    place: str, error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The second token was sampled before the row was preempted, so the constraint reads it again."""
    caplog.set_level(logging.ERROR)
    table = ConstraintTable(Compiler(place, error), VOCAB)
    masks = table.begin(
        plan(added(GOOD, (5, 6), allowed_token_ids=(7, 40)), added(BAD, (5, 6), grammar=SPEC), added(SeqId(3), (5, 6)))
    )
    assert masks is not None
    assert set(masks.of) == {GOOD, BAD}
    assert list(masks.failed) == [BAD]
    assert masks.failed[BAD].startswith(told)
    assert "0x" not in masks.failed[BAD]
    allowed = np.unpackbits(masks.bitmaps[masks.of[GOOD]].view(np.uint8), bitorder="little")
    assert np.flatnonzero(allowed).tolist() == [7, 40]
    assert (masks.bitmaps[masks.of[BAD]] == 0xFFFFFFFF).all(), "what is drawn of it is thrown away"
    assert bool(caplog.records) is (told != str(error)), "a fault that nobody foresaw is in the log"


class Dawdles:
    """A constraint whose mask takes processor time until it is told to end, and which then writes where it may not."""

    is_over = False

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.ended = threading.Event()
        self.num_asked = 0

    def narrow(self, bitmap: Bitmap) -> None:
        self.num_asked += 1
        while not self.may_end.is_set():
            pass
        bitmap.fill(0)
        self.ended.set()

    def accept(self, token_id: int) -> None:
        raise AssertionError("what it holds may be locked")


class SlowCompiler(GrammarCompiler):
    def __init__(self, made: Any) -> None:
        super().__init__(FakeTokenizer(), VOCAB, [257])
        self._made = made

    def compile(self, spec: GrammarSpec) -> Any:
        return self._made if spec == SPEC else super().compile(spec)


def test_a_mask_that_takes_too_long_ends_the_rows_of_its_grammar_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.constraints.patience.ROW_SECONDS", 0.02)
    monkeypatch.setattr("octavo.constraints.patience.LEAST_SECONDS", 0.02)
    slow, digits = Dawdles(), GrammarSpec("regex", "[0-4]+")
    table = ConstraintTable(SlowCompiler(slow), VOCAB)
    rows = [
        added(GOOD, (5,), allowed_token_ids=(7, 40)),
        added(BAD, (5,), grammar=SPEC),
        added(SeqId(3), (5,), grammar=SPEC),
        added(SeqId(4), (5,), grammar=digits),
    ]
    masks = table.begin(plan(*rows))
    assert masks is not None
    assert dict(masks.failed) == {BAD: TOO_SLOW, SeqId(3): TOO_SLOW}
    assert slow.num_asked == 1, "the second sample would wait for what the first one holds"
    assert table.accept(BAD, (1,)) is False
    slow.may_end.set()
    assert slow.ended.wait(60)
    for seq_id, wanted in ((GOOD, [7, 40]), (SeqId(4), list(b"01234"))):
        allowed = np.unpackbits(masks.bitmaps[masks.of[seq_id]].view(np.uint8), bitorder="little")
        assert np.flatnonzero(allowed).tolist() == wanted
    table.close()


def test_a_grammar_may_not_be_slow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mask is in time, all of them together are not; what a mask costs is told by its thread's own clock."""
    monkeypatch.setattr("octavo.constraints.table.BURST_SECONDS", 0.0)
    monkeypatch.setattr("octavo.constraints.table.TOKEN_SECONDS", 0.0)
    table = ConstraintTable(GrammarCompiler(FakeTokenizer(), VOCAB, [257]), VOCAB)
    masks = table.begin(plan(added(GOOD, (5,), allowed_token_ids=(7,)), added(BAD, (5,), grammar=SPEC)))
    assert masks is not None
    assert dict(masks.failed) == {BAD: TOO_SLOW}
    table.close()
