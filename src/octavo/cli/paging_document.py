"""`octavo blocks --json`: a story's steps as JSON values; blocks by their shown ids, tokens as shown.

Refuses to compute: what is told stands in the `Step`. Keys are the same in every story; what did not happen is empty or
null.
"""

from __future__ import annotations

from octavo.cli.paging_steps import SequenceView, Step
from octavo.cli.paging_text import Notation
from octavo.core.block import NULL_BLOCK


def step_document(notation: Notation, step: Step) -> dict[str, object]:
    """The step as JSON values; blocks by their shown ids, tokens as shown."""
    shift = notation.first_block
    return {
        "step": step.number,
        "branching": None
        if step.branching is None
        else {
            "sequences": list(step.branching.indices),
            "kept_tokens": step.branching.num_tokens,
            "origin_is_live": step.branching.is_live,
        },
        "runs": [
            {
                "sequence": run.index,
                "first_position": run.first,
                "num_tokens": run.count,
                "drawn": [notation.token(token) for token in run.drawn],
            }
            for run in step.runs
        ],
        "taken": [{"sequence": index, "blocks": [block + shift for block in new]} for index, new in step.taken.items()],
        "left": [{"sequence": index, "blocks": [block + shift for block in old]} for index, old in step.left.items()],
        "copies": [
            {
                "sequence": copy.index,
                "group": copy.group,
                "logical": copy.logical,
                "source": copy.source + shift,
                "target": copy.target + shift,
            }
            for copy in step.copies
        ],
        "waiting": [{"sequence": each.index, "for_block": each.for_block} for each in step.waiting],
        "found": [
            {"sequence": each.index, "num_tokens": each.num_tokens, "blocks": [block + shift for block in each.blocks]}
            for each in step.found
        ],
        "folds": [
            {
                "sequence": fold.index,
                "group": fold.group,
                "logical": fold.logical,
                "given_back": fold.given_back + shift,
                "kept": fold.kept + shift,
            }
            for fold in step.folds
        ],
        **_search_document(notation, step),
        "sequences": [_sequence_document(notation, view) for view in step.sequences],
        "freed": [block + shift for block in step.freed],
        "free": [block + shift for block in step.pool.free],
        "free_at_end": [block + shift for block in step.pool_at_end.free],
        "cached_at_end": sorted(block + shift for block in step.pool_at_end.cached),
        "ref_counts": {str(block + shift): count for block, count in sorted(step.pool.owners.items())},
    }


def _search_document(notation: Notation, step: Step) -> dict[str, object]:
    return {
        "beams": [
            {
                "sequence": beam.index,
                "parent": beam.parent,
                "token": notation.token(beam.token_id),
                "cumulative_logprob": beam.total,
            }
            for beam in step.beams
        ],
        "ended_beams": [
            {"sequence": ended.index, "freed": [block + notation.first_block for block in ended.freed]}
            for ended in step.ended_beams
        ],
        "answers": [
            {
                "tokens": [notation.token(token) for token in answer.token_ids],
                "score": answer.score,
                "cumulative_logprob": answer.total,
            }
            for answer in step.answers
        ],
    }


def _sequence_document(notation: Notation, view: SequenceView) -> dict[str, object]:
    size = notation.block_size
    tables = [
        [None if block == NULL_BLOCK else block + notation.first_block for block in table] for table in view.tables
    ]
    return {
        "sequence": view.index,
        "tokens": [notation.token(token) for token in view.token_ids],
        "num_computed_tokens": view.num_computed,
        "block_table": tables[0],
        "block_tables": tables,
        "slots": [
            [
                notation.token(view.token_ids[position]) if position < view.num_computed else None
                for position in range(logical * size, (logical + 1) * size)
            ]
            for logical in range(view.num_blocks)
        ],
        "is_parked": view.is_parked,
        "is_preempted": view.is_preempted,
        "finish_reason": view.finish_reason,
    }
