"""What of a sequence's tokens exists already, and where: in the pool, in a tier, in a live sequence it was forked from.

Asked by `Planner` for a sequence that is to start. Refuses to take blocks or to choose who starts. A sequence whose
next block is being computed by a running one waits for it instead of computing it again; the wait ends when the block
is there or its maker is gone.

    look_up ─> a hit ─> has_payloads ─> (kv.fits) ─> started
           └─> None: wait, and let others pass
"""

from __future__ import annotations

from collections import Counter

from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_history import PrefixHistory
from octavo.core.prefix_hit import Hit
from octavo.core.request import Sequence, Status
from octavo.core.roster import Roster
from octavo.core.scheduler_config import SchedulerConfig
from octavo.core.swapper import Swapper
from octavo.outputs import CacheReason, CacheReport


class PrefixLookup:
    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        roster: Roster,
        history: PrefixHistory,
        swapper: Swapper | None = None,
    ) -> None:
        self._block_size = config.block_size
        self._is_caching = config.enable_prefix_caching
        self._kv = kv
        self._roster = roster
        self._history = history
        self._swapper = swapper
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.prefix_hits_by_source: Counter[str] = Counter()
        self.tier_queries_tokens = 0

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """A tier owes an answer that somebody may wait for."""
        return self._swapper is not None and self._swapper.is_loading

    def must_wait(self, sequence: Sequence) -> bool:
        """What it asked for last time has not come yet: there is no use in looking again."""
        if sequence.waits_for is not None and self._is_coming(sequence, sequence.waits_for):
            return True
        return self._swapper is not None and self._swapper.is_waiting(sequence)

    # -- actions -----------------------------------------------------------------------------------------------------

    def collect(self, now: float) -> None:
        """Takes in what a tier has fetched. Once a plan, before anything is looked up."""
        if self._swapper is not None:
            self._swapper.collect(self._roster.sequences, now)

    def look_up(self, sequence: Sequence, now: float) -> Hit | None:
        """The sequence's prefix hit; None where a running sequence is computing its next block."""
        num_tokens = len(sequence.token_ids)
        if not self._is_caching:
            return self._with_sibling(
                sequence, self._with_origin(sequence, self._kv.find_hit(sequence.keys, num_tokens))
            )
        total = sequence.keys.extend(sequence.token_ids)
        if sequence.prompt_logprobs is not None or sequence.request.sampling.pools_all:
            return self._kv.find_hit(sequence.keys, 0)
        hit = self._with_origin(sequence, self._find_hit(sequence, num_tokens, now))
        following = hit.num_tokens // self._block_size
        if following < total and self._is_coming(sequence, sequence.keys.keys[following]):
            sequence.waits_for = sequence.keys.keys[following]
            return None
        return hit

    def has_payloads(self, sequence: Sequence, hit: Hit, now: float) -> bool:
        """Whether all that is absent of `hit` is at hand; asks for it where that was not done yet."""
        if not hit.absent:
            return True
        swapper = self._swapper
        assert swapper is not None
        return swapper.has_fetched(sequence) or (swapper.fetch(sequence, hit, now) and not swapper.is_waiting(sequence))

    def start(self, sequence: Sequence, hit: Hit, now: float) -> None:
        """The sequence starts with the blocks of `hit`, whose payloads are at hand; reports what it found at first."""
        if not sequence.request.was_started:
            self._report(sequence, hit, now)
        payloads = self._swapper.payloads(hit) if self._swapper is not None and hit.absent else ()
        self._roster.start(sequence, hit, payloads)
        if self._swapper is not None:
            self._swapper.started(sequence.seq_id, hit)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _find_hit(self, sequence: Sequence, num_tokens: int, now: float) -> Hit:
        """From the pool, and from the tier where loading is worth it."""
        swapper, keys = self._swapper, sequence.keys
        if swapper is None:
            return self._kv.find_hit(keys, num_tokens)
        if swapper.has_fetched(sequence):
            return self._kv.find_hit(keys, num_tokens, swapper.has_arrived)
        hit = self._kv.find_hit(keys, num_tokens, swapper.holds)
        if not hit.absent:
            return hit
        in_pool = self._kv.find_hit(keys, num_tokens)
        num_computable = min(hit.num_tokens, num_tokens - 1) - in_pool.num_tokens
        return hit if swapper.decide(sequence, hit, num_computable, now) else in_pool

    def _with_origin(self, sequence: Sequence, hit: Hit) -> Hit:
        """`hit`, or what the live sequence this one was forked from has computed of its tokens, if that is more."""
        request = sequence.request
        origin = None if request.origin is None else self._roster.sequences.get(request.origin)
        if origin is None or origin.tables is None or origin.request.namespace != request.namespace:
            return hit
        num_equal = min(origin.num_computed_tokens, len(sequence.token_ids))
        if num_equal <= hit.num_tokens or origin.token_ids[:num_equal] != sequence.token_ids[:num_equal]:
            return hit
        shared = self._kv.find_origin(origin.tables, num_equal, len(sequence.token_ids))
        return shared if shared.num_tokens > hit.num_tokens else hit

    def _with_sibling(self, sequence: Sequence, hit: Hit) -> Hit | None:
        """Without the cache: `hit`, or the prompt's full blocks of a sample that runs; None while it computes them.

        So samples that come back one by one share their prompt again as before they were preempted or parked.
        """
        sibling = next((s for s in sequence.request.sequences if s.status is Status.RUNNING), None)
        num_shared = sequence.num_prompt_tokens // self._block_size * self._block_size
        if sibling is None or sibling.tables is None or num_shared <= hit.num_tokens:
            return hit
        if sibling.num_computed_tokens < num_shared:
            return None
        return self._kv.find_origin(sibling.tables, num_shared, len(sequence.token_ids))

    def _is_coming(self, sequence: Sequence, key: bytes) -> bool:
        """A running sequence computes the block with this key, and `sequence` may wait for it.

        A beam that resumes waits for nobody behind it, who may stand still because of it.
        """
        maker = self._roster.maker(key)
        is_needed = sequence.is_beam and sequence.request.status is Status.RUNNING
        return maker is not None and not (is_needed and maker.request.rank > sequence.request.rank)

    def _report(self, sequence: Sequence, hit: Hit, now: float) -> None:
        """Counts what the request found when it first started, and says why it was no more."""
        request, num_tokens = sequence.request, len(sequence.token_ids)
        request.num_cached_tokens = min(hit.num_tokens, num_tokens - 1)
        sources: dict[str, int] = {}
        if self._swapper is not None and hit.absent:
            num_loaded = len({absent.index for absent in hit.absent}) * self._block_size
            sources[self._swapper.source] = min(num_loaded, request.num_cached_tokens)
        rest = request.num_cached_tokens - sum(sources.values())
        if rest:
            sources["memory" if hit.origin is None else "origin"] = rest
        if self._is_caching:
            self.prefix_queries_tokens += num_tokens
            self.prefix_hits_tokens += request.num_cached_tokens
            self.prefix_hits_by_source.update(sources)
            self.tier_queries_tokens += num_tokens - rest if self._swapper is not None else 0
        reason: CacheReason = "prompt logprobs" if sequence.prompt_logprobs is not None else "mean pooling"
        differs_at = seconds = None
        if not self._is_caching:
            reason = "caching off"
        elif sequence.prompt_logprobs is None and not request.sampling.pools_all:
            reason, differs_at, seconds = self._history.explain(
                tenant=request.tenant,
                salt=request.namespace,
                token_ids=request.prompt_token_ids,
                keys=sequence.keys,
                num_hits=hit.num_tokens,
                now=now,
            )
        request.cache_report = CacheReport(reason, num_tokens, request.num_cached_tokens, sources, differs_at, seconds)
