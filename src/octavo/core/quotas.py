"""How many blocks one client's running requests may hold together: the rest of its requests wait.

Called by the planner. Refuses to end or refuse a request: one that would take its client above the quota is passed by,
and others start in its place; where running requests grow above it, the last in rank gives up its blocks and waits
again. One that a plan in flight runs counts too, and is left out of the plan to come, so that it can give way in the
next. A client's only running request always goes on, whatever it holds, so that every request ends: the quota bounds
how many run at once. Blocks that several of the client's sequences share count once; cached blocks count for nobody.

The cheap question comes first: the tables' lengths, which count shared blocks again and again. Only where their sum is
above the quota are the blocks themselves counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.core.block import Block
from octavo.core.block_table import BlockTables
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_hit import Hit
from octavo.core.request import Request, Status
from octavo.core.roster import Roster


class Quotas:
    def __init__(self, kv: KVCacheManager, roster: Roster) -> None:
        self._kv = kv
        self._roster = roster
        self._full: set[str] = set()  # clients of which no further request starts in the plan under way
        self._landing: set[str] = set()  # requests in flight that are to give way, and so are not run in this plan

    def hold_down(self) -> None:
        """A plan begins: of each client above its quota the requests that are last in rank give way."""
        self._full.clear()
        self._landing.clear()
        running = self._roster.running
        clients = {request.client_id for request in running if request.max_client_blocks is not None}
        for client in clients:
            own = [request for request in running if request.client_id == client]
            for last in reversed(own[1:]):
                most = last.max_client_blocks
                if most is None:
                    continue  # made before its client had a quota
                if self._num_at_most(own) <= most or len(self._held(own)) <= most:
                    break
                own.remove(last)
                if last.is_in_flight:
                    self._land(last)
                else:
                    self._roster.preempt(last)

    def _land(self, request: Request) -> None:
        self._landing.add(request.request_id)
        for sequence in request.sequences:
            sequence.quiet_until = 0  # so that the planner asks `must_land`

    def must_land(self, request: Request) -> bool:
        """What is in flight of it is waited for: it is to give way."""
        return request.request_id in self._landing

    def is_full(self, request: Request) -> bool:
        """An earlier request of its client must wait in this plan, and so must this one: they keep their order."""
        return request.max_client_blocks is not None and request.client_id in self._full

    def must_wait(self, request: Request, hit: Hit, num_tokens: int) -> bool:
        """Whether starting the waiting `request`, which takes `hit` and is to grow to `num_tokens`, takes its client
        above the quota."""
        most = request.max_client_blocks
        if most is None or request.status is not Status.WAITING:
            return False
        running = [other for other in self._roster.running if other.client_id == request.client_id]
        if not running:
            return False
        needed = self._kv.num_blocks_for(num_tokens) + self._num_to_come(running)
        if self._num_at_most(running) + needed <= most:
            return False
        held = self._held(running)
        shared = sum(block in held for table in hit.blocks for block in table if block is not None)
        if len(held) + needed - shared <= most:
            return False
        self._full.add(request.client_id)
        return True

    def _num_at_most(self, running: list[Request]) -> int:
        return sum(len(tables.blocks) * tables.num_blocks for tables in _tables(running))

    def _num_to_come(self, running: list[Request]) -> int:
        """Blocks that they lack for what they know already, since prompts are run in chunks, and for the next token."""
        return sum(
            max(0, self._kv.num_blocks_for(len(s.token_ids) + 1) - len(s.tables.blocks) * s.tables.num_blocks)
            for request in running
            for s in request.sequences
            if s.tables is not None
        )

    @staticmethod
    def _held(running: list[Request]) -> set[Block]:
        return {block for tables in _tables(running) for table in tables.blocks for block in table if block is not None}


def _tables(requests: list[Request]) -> Iterator[BlockTables]:
    for request in requests:
        for sequence in request.sequences:
            if sequence.tables is not None:
                yield sequence.tables
