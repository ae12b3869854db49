"""What breaks in one row's constraints is told as that row's failure, and none of it escapes into the step."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import numpy as np
import pytest

from octavo.constraints.constraint import Bitmap, ConstraintError, num_words
from octavo.constraints.grammar import Grammar, GrammarCompiler
from octavo.constraints.table import TOO_SLOW, ConstraintTable, StepMasks
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
WIDE = GrammarSpec("choice", json.dumps([f"{n:03d}" for n in range(600)]))  # too many for the narrow limits
SPRAWLS = GrammarSpec(
    "grammar", "start: e\ne: e e e e | e e e | e e | C | C e | e C\nC: /[a-z]/", is_ours=True
)  # outgrows them


class Breaks:
    """A grammar that raises in one place."""

    is_over = False

    def __init__(self, place: str, error: Exception, is_narrow: bool) -> None:
        self._place, self._error = place, error
        self.is_narrow = is_narrow

    def narrow(self, bitmap: Bitmap) -> None:
        bitmap.fill(0)
        if self._place == "narrow":
            raise self._error

    def write(self, address: int, num_bytes: int) -> None:
        self.narrow(np.empty(num_bytes // 4, np.uint32))

    def accept(self, token_id: int) -> None:
        if self._place == "accept":
            raise self._error

    def widen(self) -> None:
        self.is_narrow = False

    def read(self, token_ids: list[int]) -> None:
        assert not token_ids

    def follow(self, token_id: int) -> Bitmap:
        self.accept(token_id)
        bitmap = np.empty(num_words(VOCAB), np.uint32)
        self.narrow(bitmap)
        return bitmap


class Compiler(GrammarCompiler):
    def __init__(self, place: str, error: Exception, is_narrow: bool) -> None:
        super().__init__(FakeTokenizer(), VOCAB, [257])
        self._place, self._fault, self._is_narrow = place, error, is_narrow

    def compile(self, spec: GrammarSpec) -> Any:
        if self._place == "compile":
            raise self._fault
        return Breaks(self._place, self._fault, self._is_narrow)


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


def plan(*rows: AddedRow, removed: tuple[SeqId, ...] = (), drawing: tuple[SeqId, ...] | None = None) -> SchedulerOutput:
    """`drawing`: rows that draw a token; None: those that are added."""
    drawing = tuple(row.seq_id for row in rows) if drawing is None else drawing
    return SchedulerOutput(
        step=0,
        removed=removed,
        added=rows,
        block_updates=(),
        copies=(),
        seq_ids=drawing,
        num_computed_tokens=tuple(0 for _ in drawing),
        num_scheduled_tokens=tuple(1 for _ in drawing),
        num_samples=tuple(1 for _ in drawing),
        first_write=tuple(0 for _ in drawing),
        prompt_logprobs={},
    )


def allowed(masks: StepMasks, seq_id: SeqId) -> list[int]:
    bits = np.unpackbits(masks.bitmaps[masks.of[seq_id]].view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_narrow", [True, False])
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
    place: str, error: Exception, told: str, is_narrow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The second token was sampled before the row was preempted, so the constraint reads it again."""
    caplog.set_level(logging.ERROR)
    table = ConstraintTable(Compiler(place, error, is_narrow), VOCAB)
    masks = table.begin(
        plan(added(GOOD, (5, 6), allowed_token_ids=(7, 40)), added(BAD, (5, 6), grammar=SPEC), added(SeqId(3), (5, 6)))
    )
    assert masks is not None
    assert set(masks.of) == {GOOD, BAD}
    assert list(masks.failed) == [BAD]
    assert masks.failed[BAD].startswith(told)
    assert "0x" not in masks.failed[BAD]
    assert allowed(masks, GOOD) == [7, 40]
    assert (masks.bitmaps[masks.of[BAD]] == 0xFFFFFFFF).all(), "what is drawn of it is thrown away"
    assert bool(caplog.records) is (told != str(error)), "a fault that nobody foresaw is in the log"


class Dawdles:
    """A constraint whose mask takes processor time until it is told to end, and which then writes where it may not."""

    is_over = False
    is_narrow = False

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
        return self._made if spec == WIDE else super().compile(spec)


def test_a_mask_that_takes_too_long_ends_the_rows_of_its_grammar_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.constraints.patience.ROW_SECONDS", 0.02)
    monkeypatch.setattr("octavo.constraints.patience.LEAST_SECONDS", 0.02)
    slow, digits = Dawdles(), GrammarSpec("regex", "[0-4]+")
    table = ConstraintTable(SlowCompiler(slow), VOCAB)
    rows = [
        added(GOOD, (5,), allowed_token_ids=(7, 40)),
        added(BAD, (5,), grammar=WIDE),
        added(SeqId(3), (5,), grammar=WIDE),
        added(SeqId(4), (5,), grammar=digits),
    ]
    masks = table.begin(plan(*rows))
    assert masks is not None
    assert dict(masks.failed) == {BAD: TOO_SLOW, SeqId(3): TOO_SLOW}
    assert slow.num_asked == 1, "the second sample would wait for what the first one holds"
    assert not table.accept([(BAD, (1,))])
    slow.may_end.set()
    assert slow.ended.wait(60)
    assert allowed(masks, GOOD) == [7, 40]
    assert allowed(masks, SeqId(4)) == list(b"01234")
    assert not table.accept([(SeqId(4), (ord("3"),))])
    masks = table.begin(plan(removed=(BAD, SeqId(3)), drawing=(GOOD, SeqId(4))))
    assert masks is not None
    assert not masks.failed
    assert allowed(masks, SeqId(4)) == [*b"01234", 257], "bitmaps are made on where the other thread does not write"
    table.close()


@pytest.mark.parametrize("spec", [SPEC, WIDE])
def test_a_grammar_may_not_be_slow_for_ever(spec: GrammarSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mask is in time, all of them together are not; what a mask costs is told by its thread's own clock."""
    monkeypatch.setattr("octavo.constraints.table.BURST_SECONDS", 0.0)
    monkeypatch.setattr("octavo.constraints.table.TOKEN_SECONDS", 0.0)
    table = ConstraintTable(GrammarCompiler(FakeTokenizer(), VOCAB, [257]), VOCAB)
    masks = table.begin(plan(added(GOOD, (5,), allowed_token_ids=(7,)), added(BAD, (5,), grammar=spec)))
    assert masks is not None
    assert dict(masks.failed) == {BAD: TOO_SLOW}
    table.close()


def gated() -> GrammarSpec:
    """Two letters behind a gate close every beginning that was open: masks are quick up to there, and to accept the
    letter behind it takes seconds."""
    pairs = [f"{a}{b}" for a in "abc" for b in "abcdefghijklmnopqrstuvwxyz"]
    ends = range(10)
    rules = [
        'start: "h" | q* y',
        'q: "Q"',
        "y: " + " | ".join(f'x "{pair}"' for pair in pairs),
        "x: " + " | ".join(f"z c{a} c{b}" for b in range(5) for a in ends),
        "z: q+ /~(.|\\n)+/",
        *(f'c{n}: "" | "k{pairs[n]}"' for n in ends),
    ]
    return GrammarSpec("grammar", "\n".join(rules))


def test_a_token_that_takes_too_long_to_accept_is_left_before_it_holds_pythons_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Held by the library, the lock stops every thread: nobody could leave this one."""
    monkeypatch.setattr("octavo.constraints.patience.ROW_SECONDS", 0.1)
    accepted: list[int] = []
    accept = Grammar.accept

    def noted(grammar: Grammar, token_id: int) -> None:
        accept(grammar, token_id)
        accepted.append(token_id)

    monkeypatch.setattr(Grammar, "accept", noted)
    table = ConstraintTable(GrammarCompiler(FakeTokenizer(), VOCAB, [257]), VOCAB)
    table.begin(plan(added(GOOD, (5,), grammar=SPEC), added(BAD, (5,), grammar=gated())))
    masks = None
    for letter in b"Q" * 100 + b"~ab":
        assert not table.accept([(GOOD, (ord("1"),)), (BAD, (letter,))])
        masks = table.begin(plan(drawing=(GOOD, BAD)))
        assert masks is not None
        if masks.failed:
            break
    assert masks is not None
    assert dict(masks.failed) == {BAD: TOO_SLOW}
    assert accepted.count(ord("Q")) == 100
    assert accepted[-1] == ord("1"), "the other row goes on"
    assert accepted.count(ord("b")) == 0
    assert allowed(masks, GOOD) == [*b"0123456789", 257]
    table.close()


class Watched(GrammarCompiler):
    """Its grammars note on which thread their masks are made."""

    def __init__(self) -> None:
        super().__init__(FakeTokenizer(), VOCAB, [257])
        self.made_on: list[tuple[GrammarSpec, int]] = []

    def compile(self, spec: GrammarSpec) -> Grammar:
        grammar = super().compile(spec)
        write = grammar.write

        def noted(address: int, num_bytes: int) -> None:
            write(address, num_bytes)
            self.made_on.append((spec, threading.get_ident()))

        follow = grammar.follow

        def followed(token_id: int) -> Bitmap:
            self.made_on.append((spec, threading.get_ident()))
            return follow(token_id)

        grammar.write, grammar.follow = noted, followed  # type: ignore[method-assign]
        return grammar


def test_only_a_grammar_that_may_be_slow_is_followed_on_another_thread() -> None:
    compiler, here = Watched(), threading.get_ident()
    table = ConstraintTable(compiler, VOCAB)
    ours, written = (GrammarSpec("grammar", 'start: "5" /[0-9]/', is_ours=is_ours) for is_ours in (True, False))
    rows = {GOOD: SPEC, BAD: WIDE, SeqId(3): ours, SeqId(4): GrammarSpec("json_object"), SeqId(5): written}
    table.begin(plan(*(added(seq_id, (5,), grammar=spec) for seq_id, spec in rows.items())))
    quick, slow = [SPEC, ours, rows[SeqId(4)]], [WIDE, written]
    assert [spec for spec, thread in compiler.made_on if thread == here] == quick
    assert [spec for spec, thread in compiler.made_on if thread != here] == slow
    compiler.made_on.clear()
    assert not table.accept((seq_id, (ord("{" if seq_id == 4 else "5"),)) for seq_id in rows)
    assert [spec for spec, thread in compiler.made_on if thread == here] == quick
    assert [spec for spec, thread in compiler.made_on if thread != here] == slow
    compiler.made_on.clear()
    masks = table.begin(plan(drawing=tuple(rows)))
    assert not compiler.made_on, "they were made as soon as the tokens were known"
    assert masks is not None
    assert table.take_worked_apart()
    assert not table.take_worked_apart(), "asked once"
    digits = list(b"0123456789")
    assert allowed(masks, GOOD) == [*digits, 257]
    assert [allowed(masks, seq_id) for seq_id in (BAD, SeqId(3), SeqId(5))] == [digits, digits, digits]
    table.close()


def test_a_row_that_outgrows_the_narrow_limits_goes_on_on_another_thread() -> None:
    """Others with its grammar are not touched, and one that comes back begins where it was."""
    compiler, here = Watched(), threading.get_ident()
    table = ConstraintTable(compiler, VOCAB)
    table.begin(plan(added(GOOD, (5,), grammar=SPRAWLS), added(BAD, (5,), grammar=SPRAWLS)))
    drawn: tuple[int, ...] = ()
    while {thread for _, thread in compiler.made_on} == {here}:
        assert len(drawn) < 60
        drawn += (ord("b"),)
        assert not table.accept([(GOOD, drawn[-1:])])
        masks = table.begin(plan(drawing=(GOOD, BAD)))
        assert masks is not None
        assert not masks.failed
        assert allowed(masks, GOOD) == [*range(ord("a"), ord("z") + 1), 257]
        assert allowed(masks, BAD) == [*range(ord("a"), ord("z") + 1)]
    assert len(drawn) > 3
    back = added(GOOD, (5, *drawn), grammar=SPRAWLS)
    masks = table.begin(plan(back, removed=(GOOD,), drawing=(GOOD, BAD)))
    assert masks is not None
    assert not masks.failed
    assert allowed(masks, GOOD) == [*range(ord("a"), ord("z") + 1), 257]
    assert not table.accept([(GOOD, (ord("1"),))])
    masks = table.begin(plan(drawing=(GOOD, BAD)))
    assert masks is not None
    assert list(masks.failed) == [GOOD]
    table.close()


def test_a_token_that_the_grammar_rules_out_ends_its_row(caplog: pytest.LogCaptureFixture) -> None:
    table = ConstraintTable(GrammarCompiler(FakeTokenizer(), VOCAB, [257]), VOCAB)
    table.begin(plan(added(GOOD, (5,), grammar=SPEC), added(BAD, (5,), grammar=SPEC)))
    assert not table.accept([(GOOD, (ord("1"),))])
    assert not table.accept([(BAD, (ord("x"),))])
    masks = table.begin(plan(drawing=(GOOD, BAD)))
    assert masks is not None
    assert list(masks.failed) == [BAD]
    assert masks.failed[BAD].startswith("the grammar")
    assert allowed(masks, GOOD) == [*b"0123456789", 257]
    assert not caplog.records
    table.close()


def test_the_token_that_ends_an_answer_ends_it_under_wide_limits_too() -> None:
    table = ConstraintTable(GrammarCompiler(FakeTokenizer(), VOCAB, [257]), VOCAB)
    table.begin(plan(added(GOOD, (5,), grammar=WIDE), added(BAD, (5,), grammar=GrammarSpec("choice", '["599"]'))))
    for letter, is_over in zip(b"599", (False, False, True), strict=True):
        over = table.accept([(GOOD, (letter,)), (BAD, (letter,))])
        assert over == ({GOOD, BAD} if is_over else set())
        masks = table.begin(plan(drawing=() if is_over else (GOOD, BAD)))
        assert (masks is None) is is_over
    table.close()


def test_a_bitmap_stays_right_while_rows_come_and_go_and_others_wait() -> None:
    """A row may not draw for steps (its prompt is computed in chunks), and places are used again."""
    table = ConstraintTable(GrammarCompiler(FakeTokenizer(), VOCAB, [257]), VOCAB)
    table.begin(plan(added(GOOD, (5,), grammar=SPEC, bad_words_token_ids=((ord("0"),),)), drawing=()))
    first = [SeqId(n) for n in range(10, 40)]
    masks = table.begin(plan(*(added(seq_id, (5,), allowed_token_ids=(int(seq_id),)) for seq_id in first)))
    assert masks is not None
    assert [allowed(masks, seq_id) for seq_id in first] == [[int(seq_id)] for seq_id in first]
    masks = table.begin(plan(added(BAD, (5, ord("1")), grammar=SPEC), removed=tuple(first), drawing=(GOOD, BAD)))
    assert masks is not None
    assert masks.of[BAD] in range(len(masks.bitmaps))
    assert len(masks.bitmaps) < 2 * (1 + len(first)) + 8
    assert allowed(masks, GOOD) == list(b"123456789")
    assert allowed(masks, BAD) == [*b"0123456789", 257]
    assert len(table) == 2
