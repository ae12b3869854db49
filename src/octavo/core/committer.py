"""Takes one step's result in: advances counts, publishes full blocks, appends tokens, forks, ends sequences.

Called by `Scheduler.commit`, in the order of the plans. Refuses to plan: what it frees is handed out by a later plan.
A sequence that ended while its step was in flight leaves no trace but the blocks it now gives back.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listing
from itertools import accumulate

from octavo.core.beam_committer import BeamCommitter
from octavo.core.block import SeqId
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Sequence, SequenceUpdate, Status
from octavo.core.roster import Roster
from octavo.core.scheduler_config import SchedulerConfig
from octavo.core.scheduler_output import SchedulerOutput, StepOutput
from octavo.outputs import FinishReason, TokenLogprobs

_Verdict = tuple[FinishReason, int | None]  # why a sequence ends, and the stop token id


class Committer:
    def __init__(
        self, config: SchedulerConfig, kv: KVCacheManager, roster: Roster, new_seq_id: Callable[[], SeqId]
    ) -> None:
        self._config = config
        self._kv = kv
        self._roster = roster
        self._new_seq_id = new_seq_id
        self._beams = BeamCommitter(roster, new_seq_id)

    def commit(self, plan: SchedulerOutput, sequences: Listing[Sequence], result: StepOutput) -> list[SequenceUpdate]:
        """Updates in the plan's order; the samples of a fork follow each other. Mutates `sequences`."""
        updates: list[SequenceUpdate] = []
        append = updates.append
        logprobs, failed = result.logprobs, result.failed
        places, drawn = _laid_out(plan.num_samples, result.token_ids)
        for sequence, count, draws, place, token_id in zip(
            sequences, plan.num_scheduled_tokens, plan.num_samples, places, drawn, strict=True
        ):
            sequence.num_computed_tokens = computed = sequence.num_computed_tokens + count
            if (
                computed < sequence.quiet_until
                and token_id is not None
                and token_id not in sequence.end_token_ids
                and not failed
            ):
                sequence.token_ids.append(token_id)
                request = sequence.request
                append(
                    SequenceUpdate(
                        request.request_id,
                        sequence.seq_id,
                        sequence.index,
                        (token_id,),
                        (logprobs[place],) if logprobs and place in logprobs else (),
                        None,
                        None,
                        None,
                        request.num_cached_tokens,
                    )
                )
                continue
            sequence.num_known_tokens -= draws
            self._commit_one(sequence, result, place, draws, updates)
        return updates

    # -- one sequence ------------------------------------------------------------------------------------------------

    def _commit_one(
        self, sequence: Sequence, result: StepOutput, place: int, draws: int, updates: list[SequenceUpdate]
    ) -> None:
        """All that may happen to a sequence whose step came down."""
        if sequence.status is Status.FINISHED:
            self._roster.landed(sequence)
        elif sequence.seq_id in result.failed:
            self._end_whole(sequence, "error", result.failed[sequence.seq_id], updates)
        else:
            self._publish(sequence)
            self._take(sequence, result, place, draws, updates)

    def _publish(self, sequence: Sequence) -> None:
        """Registers blocks that became full, if any did."""
        tables, keys = sequence.tables, sequence.keys
        assert tables is not None
        if sequence.num_computed_tokens < tables.publish_at:
            return
        first = tables.num_published
        keys.extend(sequence.token_ids)
        self._kv.publish(tables, keys, sequence.num_computed_tokens)
        self._roster.computed(sequence, keys.keys[first : tables.num_published])

    def _take(
        self, sequence: Sequence, result: StepOutput, place: int, draws: int, updates: list[SequenceUpdate]
    ) -> None:
        """The tokens drawn, or what else the step was for: chunks of a prompt, its log-probabilities, forks, beams."""
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs.extend(result.prompt_logprobs.get(sequence.seq_id, ()))
        if sequence.num_draws == 0:
            if sequence.num_computed_tokens == len(sequence.token_ids):
                embedding = result.embeddings.get(sequence.seq_id)
                self._end_whole(sequence, "length" if embedding is None else "stop", None, updates, embedding)
            return
        if draws == 0:
            return
        if sequence.is_beam:
            if sequence.prompt_logprobs is not None:
                sequence.request.prompt_logprobs = _collected(sequence)
            updates.extend(self._beams.take(sequence, result.logprobs[place]))
            return
        if draws == 1 and sequence.num_draws == 1:  # also right below, but most who come this way filled a block
            sequence.append(result.token_ids[place])
            entry = (result.logprobs[place],) if place in result.logprobs else ()
            updates.append(self._tell(sequence, entry, _collected(sequence)))
            return
        token_ids = result.token_ids[place : place + draws]
        entries = [(result.logprobs[i],) if i in result.logprobs else () for i in range(place, place + draws)]
        prompt_logprobs = _collected(sequence)
        children = self._children(sequence, draws)
        samples = [sequence, *children]
        for sample, token_id in zip(samples, token_ids, strict=True):
            sample.append(token_id)
        if children:
            self._place_children(sequence, children)
        for sample, entry in zip(samples, entries, strict=True):
            updates.append(self._tell(sample, entry, prompt_logprobs))

    def _children(self, parent: Sequence, draws: int) -> list[Sequence]:
        """Samples 1 .. draws - 1, with the tokens of the prompt."""
        parent.num_draws = 1
        children = []
        for index in range(1, draws):
            child = Sequence(self._new_seq_id(), parent.request, index, parent.token_ids.copy(), parent.keys.fork())
            child.prompt_logprobs = None
            children.append(child)
        return children

    def _place_children(self, parent: Sequence, children: list[Sequence]) -> None:
        """Forks as many as have rows beside the parent, oldest first; the others are parked until a sibling ends."""
        num_rows = self._config.max_rows - 1
        for child in children:
            if _verdict(child) is not None:
                child.status = Status.FINISHED
            elif num_rows > 0:
                num_rows -= 1
                self._roster.fork(parent, child)
            else:
                child.status = Status.PARKED
        self._roster.join(parent.request, children)

    def _tell(
        self,
        sequence: Sequence,
        entry: tuple[TokenLogprobs, ...],
        prompt_logprobs: tuple[TokenLogprobs, ...] | None,
    ) -> SequenceUpdate:
        """The update for a token just appended; ends the sequence if it is the last."""
        request = sequence.request
        verdict = _verdict(sequence)
        if verdict is not None and sequence.status is not Status.FINISHED:
            self._roster.end(sequence)
        reason, stop_reason = verdict or (None, None)
        return SequenceUpdate(
            request.request_id,
            sequence.seq_id,
            sequence.index,
            (sequence.token_ids[-1],),
            entry,
            reason,
            stop_reason,
            None,
            request.num_cached_tokens,
            prompt_logprobs,
        )

    def _end_whole(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: str | None,
        updates: list[SequenceUpdate],
        embedding: bytes | None = None,
    ) -> None:
        """Ends a sequence without a token; a beam, or one before the fork, stands for every sample of its request."""
        request = sequence.request
        stands_for_all = sequence.is_beam or len(request.sequences) == 1
        prompt_logprobs = _collected(sequence) if error is None else None
        indices = range(request.sampling.num_reported) if stands_for_all else [sequence.index]
        updates.extend(
            SequenceUpdate(
                request.request_id,
                sequence.seq_id,
                index,
                (),
                finish_reason=reason,
                error=error,
                num_cached_tokens=request.num_cached_tokens,
                prompt_logprobs=prompt_logprobs,
                embedding=embedding,
            )
            for index in indices
        )
        for each in reversed(request.live) if sequence.is_beam else [sequence]:
            self._roster.end(each)


def _laid_out(num_samples: tuple[int, ...], token_ids: Listing[int]) -> tuple[Listing[int], Listing[int | None]]:
    """For each sequence of a plan: the place of what it drew in `token_ids`, and the token where it drew just one."""
    if len(token_ids) == len(num_samples) and 0 not in num_samples:
        return range(len(token_ids)), token_ids
    places = list(accumulate(num_samples, initial=0))[:-1]
    return places, [token_ids[place] if draws == 1 else None for place, draws in zip(places, num_samples, strict=True)]


def _collected(sequence: Sequence) -> tuple[TokenLogprobs, ...] | None:
    """Gives the prompt's log-probabilities out, once."""
    if sequence.prompt_logprobs is None:
        return None
    collected = tuple(sequence.prompt_logprobs)
    sequence.prompt_logprobs = None
    return collected


def _verdict(sequence: Sequence) -> _Verdict | None:
    """Whether the last token ends the sequence. An end token counts only after `min_tokens` others."""
    token_id, length = sequence.token_ids[-1], len(sequence.token_ids)
    if token_id in sequence.end_token_ids and length > sequence.min_num_tokens:
        return "stop", token_id if token_id in sequence.request.sampling.stop_token_ids else None
    if length >= sequence.max_num_tokens:
        return "length", None
    return None
