"""Brings blocks back from a tier, for sequences that wait to start, and names what leaves memory.

Called by `Planner` and `Scheduler`. Refuses to hold blocks of the pool: a sequence that waits for its payloads holds
none, so an abort has nothing to give back and nobody can starve behind a slow load. Payloads that arrived are kept
here, bounded, until the sequence starts or stops wanting them. A load that fails is a miss: the prefix is computed.

    look-up ─> decide ──recompute──> start with what the pool has
                  └──swap──> fetch, wait (others run) ──> look-up of pool and payloads at hand ──> start

Invariant: every payload kept is wanted by a sequence that waits; bytes kept and being fetched stay within
`max_loading_bytes`, except that one sequence alone may exceed it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256

from octavo.core.block import SeqId
from octavo.core.prefix_hit import Hit
from octavo.core.protocols import Tier
from octavo.core.request import Sequence, Status
from octavo.core.swap_costs import SwapCosts, SwapDecision

DEFAULT_MAX_LOADING_BYTES = 2**28
MAX_REMEMBERED_DECISIONS = 16  # of one request: the latest
_MAX_REMEMBERED_FAILURES = 4096


class _Fetch:
    """One block on its way; `payload` is None until it has arrived."""

    __slots__ = ("payload", "wanted_by")

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.wanted_by: set[SeqId] = set()


class _Wait:
    """What one sequence waits for."""

    __slots__ = ("keys", "num_missing", "since", "was_told")

    def __init__(self, since: float) -> None:
        self.since = since
        self.keys: set[bytes] = set()
        self.num_missing = 0  # of them not arrived
        self.was_told = False  # the costs know how long it took


class Swapper:
    def __init__(
        self,
        tier: Tier,
        costs: SwapCosts,
        *,
        identity: bytes,
        block_bytes: int,
        max_loading_bytes: int = DEFAULT_MAX_LOADING_BYTES,
    ) -> None:
        """`identity` names everything beside the tokens that a payload depends on: model, layout, types, numerics."""
        self.tier = tier
        self.source = tier.stats().name  # "ram", "disk"
        self.num_loads = 0  # blocks brought back
        self.num_failed_loads = 0  # blocks that could not be
        self.num_swaps = 0  # decisions
        self.num_recomputes = 0
        self._costs = costs
        self._identity = identity
        self._block_bytes = block_bytes
        self._max_blocks = max(max_loading_bytes // max(block_bytes, 1), 1)
        self._fetches: dict[bytes, _Fetch] = {}
        self._waits: dict[SeqId, _Wait] = {}
        self._is_full = False  # in this plan: somebody was refused
        self._failed: OrderedDict[bytes, None] = OrderedDict()  # not asked for again until stored again

    # -- questions ---------------------------------------------------------------------------------------------------

    def tier_key(self, group: int, key: bytes) -> bytes:
        """The name of a block's payload in every tier: 32 bytes."""
        return sha256(self._identity + group.to_bytes(4, "little") + key).digest()

    def holds(self, group: int, key: bytes) -> bool:
        """Whether the block can be had without computing it."""
        name = self.tier_key(group, key)
        if name in self._failed:
            return False
        return name in self._fetches or self.tier.contains(name)

    def has_arrived(self, group: int, key: bytes) -> bool:
        """Whether the payload is at hand."""
        fetch = self._fetches.get(self.tier_key(group, key))
        return fetch is not None and fetch.payload is not None

    def has_fetched(self, sequence: Sequence) -> bool:
        """The sequence has had its turn: from now on it takes what arrived and asks for nothing more."""
        return sequence.seq_id in self._waits

    def is_waiting(self, sequence: Sequence) -> bool:
        """The sequence waits for payloads that have not arrived."""
        wait = self._waits.get(sequence.seq_id)
        return wait is not None and wait.num_missing > 0

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for payloads (the status WAITING_FOR_TIER of the design)."""
        return sum(wait.num_missing > 0 for wait in self._waits.values())

    @property
    def is_loading(self) -> bool:
        """The tier owes an answer, be it for nobody any more: until it comes, the bounds may hold others back."""
        return any(fetch.payload is None for fetch in self._fetches.values())

    @property
    def num_bytes_kept(self) -> int:
        """Of payloads that arrived and were not taken."""
        return sum(len(fetch.payload) for fetch in self._fetches.values() if fetch.payload is not None)

    def payloads(self, hit: Hit) -> list[bytes]:
        """Those of the absent blocks, in order. All of them have arrived."""
        found = []
        for absent in hit.absent:
            payload = self._fetches[self.tier_key(absent.group, absent.key)].payload
            assert payload is not None
            found.append(payload)
        return found

    # -- actions -----------------------------------------------------------------------------------------------------

    def decide(self, sequence: Sequence, hit: Hit, num_computable: int, now: float) -> bool:
        """Whether to load what is absent of `hit`, rather than to compute its last `num_computable` tokens."""
        decision = self._costs.decide(now, len(hit.absent), num_computable, hit.num_tokens - num_computable)
        is_swap = decision.chosen == "swap"
        if _note(sequence.request.swap_decisions, decision):
            self.num_swaps += is_swap
            self.num_recomputes += not is_swap
        return is_swap

    def fetch(self, sequence: Sequence, hit: Hit, now: float) -> bool:
        """Asks the tier for what is absent of `hit`. False, asking nothing, where the bounds forbid it now."""
        names = [self.tier_key(absent.group, absent.key) for absent in hit.absent]
        new = [name for name in names if name not in self._fetches]
        if new and (self._is_full or (self._fetches and len(self._fetches) + len(new) > self._max_blocks)):
            self._is_full = True  # nobody behind goes ahead of a large one, or it would never have its turn
            return False
        wait = self._waits.setdefault(sequence.seq_id, _Wait(now))
        for name in names:
            fetch = self._fetches.get(name)
            if fetch is None:
                fetch = self._fetches[name] = _Fetch()
                self.tier.start_get(name)
            if name not in wait.keys:
                wait.keys.add(name)
                fetch.wanted_by.add(sequence.seq_id)
                wait.num_missing += fetch.payload is None
        return True

    def collect(self, waiting: Mapping[SeqId, Sequence], now: float) -> None:
        """Takes in what the tier has fetched, and forgets sequences that wait no more. Once a plan."""
        self._is_full = False
        for name, payload in self.tier.finished():
            self._arrived(name, payload, now)
        for seq_id in [s for s in self._waits if (q := waiting.get(s)) is None or not _may_start(q)]:
            self.forget(seq_id)

    def forget(self, seq_id: SeqId) -> None:
        """The sequence started, ended or changed its mind; payloads that nobody else wants are dropped."""
        wait = self._waits.pop(seq_id, None)
        if wait is None:
            return
        for name in wait.keys:
            fetch = self._fetches[name]
            fetch.wanted_by.discard(seq_id)
            if not fetch.wanted_by and fetch.payload is not None:
                del self._fetches[name]  # one still on its way is dropped when it arrives

    def started(self, seq_id: SeqId, hit: Hit) -> None:
        """A sequence started with the payloads of `hit`."""
        self.num_loads += len(hit.absent)
        self.forget(seq_id)

    def stored(self, name: bytes) -> None:
        """The tier was given this payload: an old failure does not count any more."""
        self._failed.pop(name, None)

    def _arrived(self, name: bytes, payload: bytes | None, now: float) -> None:
        fetch = self._fetches.get(name)
        if fetch is None:
            return
        if payload is not None and len(payload) != self._block_bytes:
            payload = None
        if payload is None:
            self.num_failed_loads += 1
            self._failed[name] = None
            if len(self._failed) > _MAX_REMEMBERED_FAILURES:
                self._failed.popitem(last=False)
        for seq_id in fetch.wanted_by:
            wait = self._waits[seq_id]
            wait.num_missing -= 1
            if payload is None:
                wait.keys.discard(name)
            if wait.num_missing == 0 and not wait.was_told and wait.keys:
                wait.was_told = True
                self._costs.observe_load(len(wait.keys), max(now - wait.since, 0.0))
        if payload is None or not fetch.wanted_by:
            del self._fetches[name]
        else:
            fetch.payload = payload

    def check_drained(self) -> None:
        """Raises AssertionError where something is kept for sequences that are gone."""
        assert not self._waits, f"{len(self._waits)} sequences that are gone still wait"
        assert not self.num_bytes_kept, f"{self.num_bytes_kept} bytes of payloads are kept for nobody"

    def check_integrity(self) -> None:
        """Raises AssertionError unless who waits and what is fetched agree."""
        for seq_id, wait in self._waits.items():
            missing = [name for name in wait.keys if self._fetches[name].payload is None]
            assert len(missing) == wait.num_missing, f"sequence {seq_id} waits for {len(missing)} blocks"
            assert all(seq_id in self._fetches[name].wanted_by for name in wait.keys)
        for name, fetch in self._fetches.items():
            assert all(name in self._waits[seq_id].keys for seq_id in fetch.wanted_by)
            assert fetch.wanted_by or fetch.payload is None, "a payload is kept that nobody wants"


def _may_start(sequence: Sequence) -> bool:
    """Samples of a request that gave way come after its first, which may need the room that their payloads take."""
    request = sequence.request
    return sequence.status is Status.WAITING and (request.status is Status.RUNNING or request.live[0] is sequence)


def _note(decisions: list[SwapDecision], decision: SwapDecision) -> bool:
    """Keeps a decision that says something new: a request that lacks room is asked about in every step."""
    if decisions and (decisions[-1].chosen, decisions[-1].num_tokens) == (decision.chosen, decision.num_tokens):
        return False
    decisions.append(decision)
    del decisions[:-MAX_REMEMBERED_DECISIONS]
    return True
