"""`octavo blocks` on paper: a story's steps as lines of fixed width.

Lines hold ANSI colours through click.style; click.echo takes them off where the output is no terminal, so the plain
text is the same everywhere. Physical ids shown are the scheduler's plus `first_block`. Refuses to compute: what is
printed stands in the `Step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import click

from octavo.cli.paging_steps import Beam, Branching, Found, PoolView, Run, SequenceView, Step
from octavo.cli.width import clip, pad, pad_left, text_width, wrap
from octavo.core.block import NULL_BLOCK, BlockId

COLUMNS = 100
MAX_CELL = 12  # columns of one token in its slot
MAX_ROWS = 6  # longer block tables fold the rows that did not change
MAX_TOKENS = 24  # longer sequences show their last tokens after the first step
HEAD = 21  # columns of a row before its slots
LABEL = 12  # columns of "free pool   "
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")


@dataclass(frozen=True, slots=True)
class Notation:
    """How ids become words."""

    token: Callable[[int], str]  # printable, no control characters
    block_size: int
    num_blocks: int
    first_block: int  # physical id shown for block 0
    num_sequences: int
    windows: tuple[int | None, ...] = (None,)  # of each KV group
    cell: int = 4  # columns of a slot

    def physical(self, block_id: BlockId) -> str:
        return str(block_id + self.first_block)

    def sequence(self, index: int) -> str:
        return chr(ord("A") + index) if self.num_sequences <= 26 else f"S{index + 1}"

    def quoted(self, token_id: int) -> str:
        return f'"{self.token(token_id)}"'


def opening(notation: Notation, prompts: Sequence[Sequence[int]], executor: str) -> Iterator[str]:
    """The title, the prompts, and the pool before anything happened."""
    last = notation.first_block + notation.num_blocks - 1
    counts = " and ".join(str(len(prompt)) for prompt in prompts)
    count = f"{counts} token" + ("s" if counts != "1" else "")
    title = f"{count}, {notation.block_size} a block, physical blocks {notation.first_block}-{last}, {executor}"
    yield click.style(f"octavo blocks: {title}", bold=True)
    yield ""
    for index, prompt in enumerate(prompts):
        label = "tokens" if len(prompts) == 1 else f"{notation.sequence(index)} tokens"
        yield from _labelled(label, [notation.token(token) for token in prompt])
    yield from _free_pool(notation, PoolView(tuple(map(BlockId, range(notation.num_blocks))), frozenset(), {}))


def step_lines(notation: Notation, step: Step) -> Iterator[str]:
    """One step: what ran, what it took and copied, then every sequence and the pool as they are afterwards."""
    yield ""
    yield from (click.style(line, bold=True) for line in _headline(notation, step))
    yield from _copy_lines(notation, step)
    yield from _beam_lines(notation, step)
    yield ""
    for sequence in step.sequences:
        yield from _sequence_lines(notation, step, sequence)
    yield from _free_pool(notation, step.pool)


def ending(notation: Notation, step: Step) -> Iterator[str]:
    """After a step with which sequences ended: what went back."""
    yield ""
    for line in _answers(notation, step):
        yield click.style(line, bold=True)
    for sequence in () if step.answers else step.finished:
        who = f"{notation.sequence(sequence.index)} ends" if notation.num_sequences > 1 else "the end"
        yield click.style(f"{who}: {_why(notation, sequence)}", bold=True)
    if step.freed:
        yield click.style(f"{_blocks(notation, step.freed)} go{'es' if len(step.freed) == 1 else ''} back", bold=True)
    yield ""
    yield from _free_pool(notation, step.pool_at_end)


def fitted(notation: Notation, steps: Sequence[Step]) -> Notation:
    """With slots as wide as the widest token that stands in one, 4 to MAX_CELL columns."""
    tokens = {token for step in steps for view in step.sequences for token in view.token_ids[: view.num_computed]}
    widest = max((text_width(notation.token(token)) for token in tokens), default=0)
    return replace(notation, cell=max(4, min(MAX_CELL, widest)))


def _headline(notation: Notation, step: Step) -> list[str]:
    parts = [] if step.branching is None else [_branching(notation, step.branching)]
    found = {each.index: each for each in step.found}
    parts += [_ran(notation, step, run, found.get(run.index)) for run in step.runs]
    ran = {run.index for run in step.runs}
    if step.beams or any(len(run.drawn) > 1 for run in step.runs):
        ran = set(range(notation.num_sequences))
    still = [view for view in step.sequences if view.index not in ran and not view.is_parked and not view.is_preempted]
    parts += [f"{notation.sequence(view.index)}: no block is free, it waits" for view in still]
    for waiting in step.waiting:
        why = "its next block is being computed, it waits for it" if waiting.for_block else "there is no room, it waits"
        parts.append(f"{notation.sequence(waiting.index)}: {why}")
    start = f"step {step.number}: "
    return [(start if place == 0 else " " * len(start)) + part for place, part in enumerate(parts)]


def _branching(notation: Notation, branching: Branching) -> str:
    names = [notation.sequence(index) for index in branching.indices]
    who = _listed(names) if len(names) <= MAX_ROWS else f"{names[0]} to {names[-1]}"
    verb = "branches" if len(branching.indices) == 1 else "branch"
    where = f"after {branching.num_tokens} token{'s' if branching.num_tokens != 1 else ''} of its answer"
    return f"{who} {verb} off {notation.sequence(0)} {where}" + ("" if branching.is_live else ", which has ended")


def _ran(notation: Notation, step: Step, run: Run, found: Found | None) -> str:
    view = next(view for view in step.sequences if view.index == run.index)
    tokens = view.token_ids[run.first : run.first + run.count]
    words = [f"run {notation.quoted(tokens[0]) if run.count == 1 else f'{run.count} tokens'}"]
    if found is not None:
        count = f"{found.num_tokens} tokens are" if found.num_tokens > 1 else "1 token is"
        words.insert(0, f"{count} there, in {_blocks(notation, found.blocks)}")
    if blocks := step.taken.get(run.index):
        words.append(f"take {_blocks(notation, blocks)}")
    if run.drawn:
        words.append(f"draw {' '.join(map(notation.quoted, run.drawn))}")
    many = notation.num_sequences > 1
    forks = many and len(run.drawn) > 1
    who = f"{notation.sequence(run.index)}: " if many and not forks else ""
    return who + ", ".join(words) + (f", one for each of {len(run.drawn)}" if forks else "")


def _beam_lines(notation: Notation, step: Step) -> Iterator[str]:
    """Who has no successor, then each beam's best child, in its place, and the others, which are forks."""
    indent = " " * len(f"step {step.number}: ")
    for ended in step.ended_beams:
        back = f"and gives {_blocks(notation, ended.freed)} back" if ended.freed else "and held no block alone"
        yield f"{indent}{notation.sequence(ended.index)} is not among the best any more {back}"
    for beam in sorted(step.beams, key=lambda each: (each.parent, each.index != each.parent, each.index)):
        yield f"{indent}{_beam(notation, beam)} {notation.quoted(beam.token_id)}, {beam.total:.2f}"


def _beam(notation: Notation, beam: Beam) -> str:
    name, parent = notation.sequence(beam.index), notation.sequence(beam.parent)
    return f"{name} goes on with" if beam.index == beam.parent else f"{parent} forks: {name} goes on with"


def _answers(notation: Notation, step: Step) -> Iterator[str]:
    if step.answers:
        yield "the search ends; each answer's score is its log-probability over its length"
    for place, answer in enumerate(step.answers, 1):
        words = " ".join(map(notation.token, answer.token_ids))
        yield f"{place:>3}. {answer.score:.3f} = {answer.total:.2f} / {len(answer.token_ids)}   {words}"


def _copy_lines(notation: Notation, step: Step) -> Iterator[str]:
    indent = " " * len(f"step {step.number}: ")
    for index, blocks in step.left.items():
        verb = "falls" if len(blocks) == 1 else "fall"
        who = f"{notation.sequence(index)}: " if notation.num_sequences > 1 else ""
        yield f"{indent}{who}{_blocks(notation, blocks)} {verb} out of the window"
    for copy in step.copies:
        source, target = notation.physical(copy.source), notation.physical(copy.target)
        who = notation.sequence(copy.index)
        yield f"{indent}{who} would write into {source}, which others hold: copy {source} -> {target}"
    for block in sorted({copy.source for copy in step.copies}):
        owners = [view for view in step.sequences if view.holds(block) and view.finish_reason is None]
        if len(owners) == 1:
            who = notation.sequence(owners[0].index)
            yield f"{indent}{who} is the last to hold {notation.physical(block)} and keeps it"
    for fold in step.folds:
        who = notation.sequence(fold.index)
        own, kept = notation.physical(fold.given_back), notation.physical(fold.kept)
        yield f"{indent}{who}'s {own} came out equal to {kept}: {who} holds {kept} now, and {own} goes back"


def _sequence_lines(notation: Notation, step: Step, sequence: SequenceView) -> Iterator[str]:
    name = f"{notation.sequence(sequence.index)} tokens" if notation.num_sequences > 1 else "tokens"
    yield from _labelled(name, _token_words(notation, sequence, whole=step.number == 1))
    if sequence.is_parked or sequence.is_preempted:
        how = "parked" if sequence.is_parked else "preempted"
        yield f"  {pad('', LABEL)}{how}: no block was free; it gave its own back and waits"
        return
    for group, window in enumerate(notation.windows):
        span = "" if window is None else f" of layers that see {window} tokens"
        if len(notation.windows) > 1 and window is None:
            span = " of layers that see all tokens"
        yield f"  {pad('', LABEL)}logical -> physical   slots{span}"
        yield from _table_lines(notation, step, sequence, group)


def _table_lines(notation: Notation, step: Step, sequence: SequenceView, group: int) -> Iterator[str]:
    changed = _changed_rows(step, sequence, notation.block_size)
    first_hidden: int | None = None
    for logical, block in enumerate(sequence.tables[group]):
        if sequence.num_blocks > MAX_ROWS and logical not in changed:
            first_hidden = logical if first_hidden is None else first_hidden
            continue
        yield from _fold(first_hidden, logical)
        first_hidden = None
        if block == NULL_BLOCK:
            yield click.style(f"  {pad('', LABEL)}{logical:>7} -> -         out of the window", dim=True)
        else:
            yield from _block_lines(notation, step, sequence, logical, block)
    yield from _fold(first_hidden, sequence.num_blocks)


def _fold(first: int | None, stop: int) -> Iterator[str]:
    if first is not None:
        rows = f"{first}" if stop - first == 1 else f"{first}-{stop - 1}"
        yield click.style(f"  {pad('', LABEL)}{pad_left(rows, 7)}    as before", dim=True)


def _changed_rows(step: Step, sequence: SequenceView, block_size: int) -> set[int]:
    """Places of the table that this step wrote to or replaced; all of them where the sequence's prompt ran."""
    changed = {copy.logical for copy in step.copies if copy.index == sequence.index}
    for run in step.runs:
        if run.index == sequence.index:
            changed |= set(range(run.first // block_size, (run.first + run.count - 1) // block_size + 1))
    return changed


def _block_lines(notation: Notation, step: Step, sequence: SequenceView, logical: int, block: BlockId) -> Iterator[str]:
    size, cell = notation.block_size, notation.cell
    filled = sequence.token_ids[logical * size : min((logical + 1) * size, sequence.num_computed)]
    cells = [pad(clip(notation.token(token), cell), cell) for token in filled]
    cells += [click.style("_" * cell, dim=True)] * (size - len(filled))
    notes = ["full" if len(filled) == size else f"{len(filled)} of {size}"]
    owners = step.pool.owners.get(block, 0)
    if owners > 1:
        notes.append(f"shared by {owners}")
    notes += [
        f"own copy of {notation.physical(copy.source)}"
        for copy in step.copies
        if copy.index == sequence.index and copy.target == block
    ]
    number = click.style(pad(notation.physical(block), 9), fg=_COLOURS[block % len(_COLOURS)])
    head = f"  {pad('', LABEL)}{logical:>7} -> {number} "
    num_lines = -(-size // max(1, (COLUMNS - LABEL - HEAD - 4) // (cell + 3)))
    per_line = -(-size // num_lines)
    for begin in range(0, size, per_line):
        line = f"{head}| {' | '.join(cells[begin : begin + per_line])} |"
        head = " " * (2 + LABEL + HEAD)
        yield line + (f"  {', '.join(notes)}" if begin + per_line >= size else "")


def _token_words(notation: Notation, sequence: SequenceView, whole: bool) -> list[str]:
    """Tokens that were run, then in parentheses the one drawn and not yet run."""
    words = [notation.token(token) for token in sequence.token_ids[: sequence.num_computed]]
    if not whole and len(words) > MAX_TOKENS:
        words = [f"({len(words) - MAX_TOKENS // 2} tokens)", "..", *words[-MAX_TOKENS // 2 :]]
    return words + [f"({notation.token(token)})" for token in sequence.token_ids[sequence.num_computed :]]


def _why(notation: Notation, sequence: SequenceView) -> str:
    if sequence.finish_reason != "length":
        return sequence.finish_reason or ""
    waiting = sequence.token_ids[sequence.num_computed :]
    last = f"; {notation.quoted(waiting[-1])}, drawn last, is never run and takes no slot" if waiting else ""
    return f"its length is reached{last}"


def _blocks(notation: Notation, blocks: Sequence[BlockId]) -> str:
    """ "block 11", "blocks 11, 12 and 13"."""
    ids = [notation.physical(block) for block in blocks]
    return f"block{'s' if len(ids) > 1 else ''} {_listed(ids)}"


def _listed(words: Sequence[str]) -> str:
    """ "11", "11, 12 and 13"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def _free_pool(notation: Notation, pool: PoolView) -> Iterator[str]:
    """Runs of more than MAX_TOKENS free blocks are shortened to their ends."""
    words = [notation.physical(block) + ("*" if block in pool.cached else "") for block in pool.free]
    if len(words) > MAX_TOKENS:
        words = [*words[: MAX_TOKENS - 2], "..", words[-1]]
    yield from _labelled("free pool", words or ["none"])
    if pool.cached:
        yield click.style(
            f"  {pad('', LABEL)}* keeps its tokens until it is needed: a prompt that begins so finds it", dim=True
        )


def _labelled(label: str, words: Sequence[str]) -> Iterator[str]:
    for place, line in enumerate(wrap(words, COLUMNS - LABEL - 2)):
        yield f"  {pad(label if place == 0 else '', LABEL)}{line}"
