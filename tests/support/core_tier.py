"""A tier beside the harness of the heart: blocks move as the engine moves them, and every payload is checked.

    plan ─> what it evicts is read ─> what it loads is written ─> it runs        in the order of the plans
    drop ─> what was dropped is read ─> its memory goes back

With a plan in flight that has not run, what leaves waits for its turn, as on a device that works through a queue. The
payloads are the slots of the shadow store; the scripted tier refuses a key that comes with two of them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from random import Random

from octavo.core.block import BlockId
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.scheduler_output import SchedulerOutput
from octavo.core.swap_costs import SwapCosts
from octavo.core.swapper import Swapper
from support.scripted_tier import Faults, ScriptedTier
from support.shadow_store import ShadowStore

SLOT_BYTES = 8
Moved = list[tuple[BlockId, bytes]]


class TierBeside:
    def __init__(self, tier: ScriptedTier, swapper: Swapper) -> None:
        self.tier = tier
        self.swapper = swapper
        self.num_waits = 0
        self.num_left_loading = 0  # aborts of requests that waited for payloads
        self.num_off = 0
        self._leaving: Moved = []  # until a plan takes them along
        self._leave_with: dict[int, Moved] = {}  # by step

    # -- around the plans --------------------------------------------------------------------------------------------

    def planned(self, scheduler: Scheduler, plan: SchedulerOutput | None) -> None:
        self._leaving += scheduler.take_evicted()
        if plan is not None:
            self._leave_with[plan.step], self._leaving = self._leaving, []

    def before_run(self, scheduler: Scheduler, store: ShadowStore, plan: SchedulerOutput) -> None:
        self._move_out(scheduler, store, self._leave_with.pop(plan.step))
        for block_id, payload in plan.loads:
            write_block(store, block_id, payload)

    def dropped(self, scheduler: Scheduler, store: ShadowStore) -> None:
        """Blocks were dropped from the cache."""
        self._leaving += scheduler.take_evicted()
        if not self._leave_with:
            self._move_out(scheduler, store, self._leaving)
            self._leaving = []

    def store_some(self, scheduler: Scheduler, store: ShadowStore, limit: int) -> None:
        for block_id, key in scheduler.to_store(limit):
            self._move_out(scheduler, store, [(block_id, key)])
            scheduler.note_stored(block_id)

    def wait(self) -> bool:
        """Nothing could run. False where nothing is on its way either."""
        if not self.tier.num_fetching:
            return False
        self.num_waits += 1
        self.tier.wait(1.0)
        return True

    def turn_off(self) -> None:
        self.num_off += not self.tier.off
        self.tier.turn_off()

    def loading(self, scheduler: Scheduler) -> list[str]:
        """Requests that wait for payloads."""
        return [s.request.request_id for s in scheduler.sequences() if self.swapper.is_waiting(s)]

    def note_abort(self, scheduler: Scheduler, request_id: str) -> None:
        self.num_left_loading += request_id in self.loading(scheduler)

    def check_drained(self, scheduler: Scheduler) -> None:
        while self.wait():
            assert scheduler.plan(float("inf")) is None
        self.swapper.check_drained()
        assert not self.swapper._fetches
        assert not self._leave_with

    def seen(self) -> Counter[str]:
        seen = {f"tier {what}": count for what, count in self.tier.seen.items()}
        swapper = self.swapper
        return Counter(
            {
                **seen,
                "tier loads": swapper.num_loads,
                "tier failures": swapper.num_failed_loads,
                "tier recomputes": swapper.num_recomputes,
                "tier aborts": self.num_left_loading,
                "tier off": self.num_off,
            }
        )

    def _move_out(self, scheduler: Scheduler, store: ShadowStore, moved: Moved) -> None:
        for block_id, key in moved:
            self.tier.put(key, read_block(store, block_id))
            scheduler.swapped_out(key)


def random_tier(rng: Random, config: SchedulerConfig) -> TierBeside | None:
    """None, as often as not; else one of every temper, with costs that make up their mind anew each time."""
    if rng.random() < 0.5 or not config.enable_prefix_caching:
        return None
    faults = Faults(
        drop=rng.choice((0.0, 0.0, 0.2)),
        lose=rng.choice((0.0, 0.0, 0.2)),
        damage=rng.choice((0.0, 0.0, 0.2)),
        cut=rng.choice((0.0, 0.0, 0.1)),
        max_delay=rng.choice((0, 1, 3, 8)),
    )
    return make_tier(rng, config, faults, rng.choice((8, 64, 10_000)), rng.choice((1, 2, 4, 1_000)))


def make_tier(rng: Random, config: SchedulerConfig, faults: Faults, max_blocks: int, max_loading: int) -> TierBeside:
    tier = ScriptedTier(rng, faults, max_blocks=max_blocks)
    block_bytes = config.block_size * SLOT_BYTES
    costs = SwapCosts(block_bytes, lambda count, before: rng.choice((None, 0.0, 1.0)), "auto")
    return TierBeside(
        tier,
        Swapper(tier, costs, identity=b"", block_bytes=block_bytes, max_loading_bytes=max_loading * block_bytes),
    )


def read_block(store: ShadowStore, block_id: BlockId) -> bytes:
    slots = store.slots[block_id]
    assert None not in slots, f"block {block_id} leaves with slots that nobody wrote"
    return array("q", [slot for slot in slots if slot is not None]).tobytes()


def write_block(store: ShadowStore, block_id: BlockId, payload: bytes) -> None:
    store.slots[block_id] = list(array("q", payload))
