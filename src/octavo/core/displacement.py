"""Makes way: for a running sequence that lacks a block, and for a newcomer whom the ordering policy puts before others.

Called by the planner. Joins the two policies: the ordering one says who may be displaced, the preemption one who of
them gives way, and the bound of `preemption.least_preempted` holds for both. Refuses to preempt anybody who is in
flight, or anybody at all where a newcomer would not get enough by it.
"""

from __future__ import annotations

from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.policies import OrderingPolicy
from octavo.core.preemption import PreemptionPolicy, least_preempted
from octavo.core.prefix_hit import Hit
from octavo.core.request import Request
from octavo.core.roster import Roster


class Displacement:
    def __init__(
        self, kv: KVCacheManager, roster: Roster, ordering: OrderingPolicy, preemption: PreemptionPolicy
    ) -> None:
        self._kv = kv
        self._roster = roster
        self._ordering = ordering
        self._preemption = preemption
        self.num_displaced = 0  # requests that gave way to a newcomer

    def take_from_behind(self, request: Request) -> bool:
        """One request behind `request` gives up its blocks; False where there is none that could."""
        candidates = [other for other in self._roster.behind(request) if not other.is_in_flight]
        if not candidates:
            return False
        self._roster.preempt(self._preemption.choose(least_preempted(candidates)))
        return True

    def displaceable(self, request: Request) -> list[Request]:
        """Running requests that should give way so that the waiting `request` can start, first in rank first."""
        running = self._roster.running
        found = self._ordering.displaceable(request, self._roster.rows_for(request), running)
        return [other for other in found if not other.is_in_flight]

    def make_way(self, request: Request, hit: Hit, lacking_rows: int, lacking_blocks: int) -> bool:
        """Room for a waiting request that begins with `hit`: enough displaced ones give way, or nobody does.

        Beyond what it lacks a block must come free for every lane, or they would take its room in this very plan.
        """
        lacking_blocks += len(self._roster.lanes()) * len(self._kv.windows)
        offered = self.displaceable(request)
        victims: list[Request] = []
        while lacking_rows > 0 or lacking_blocks > 0:
            if not offered:
                return False
            victim = self._preemption.choose(least_preempted(offered))
            offered.remove(victim)
            victims.append(victim)
            lacking_rows -= victim.num_reserved
            lacking_blocks -= sum(self._kv.num_freed(s.tables, hit) for s in victim.sequences if s.tables is not None)
        for victim in victims:
            self._roster.preempt(victim)
        self.num_displaced += len(victims)
        return True
