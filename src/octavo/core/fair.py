"""Fair sharing between clients, by virtual token counters.

Each client has a counter of what it got, divided by its weight; who waits is started in the order of the counters, and
the tokens of a step go to the prompt of the client that got least (after Sheng et al., "Fairness in Serving Large
Language Models", OSDI 2024). Refuses to know where a client's name came from.

    charged       1 for a prompt token that had to be run, when its request first starts; 2 for a token drawn. Cached
                  tokens and what is run again after a preemption cost nothing: the client did not ask for it
    returning     a client with nothing in the server is lifted to the least counter of the active ones: idle time is
                  not saved up (where none is active, to that of the last one that was); and its counter is kept, so
                  that leaving for a moment wipes nothing out
    rank          (1, order) while it waits, (0, number of the start) while it runs: frozen, so that the first of the
                  running ones stays the first until it ends
    passed by     a client that waits goes first once others had PASSES starts since its own last one (or, where there
                  are many clients, PASSES_A_CLIENT for each): newcomers without end, each below it, never starve it
    displacing    a request that never ran may displace running ones of a client with a counter at least as high, as
                  long as that client keeps, by weight, at least as many rows as the newcomer's then has. Where the
                  newcomer's client runs something already, the other must be ahead by HEAD_START: no ping-pong, for
                  every request displaces once in its life at most. The first in rank is never displaced
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Listing
from heapq import heapify, heappop, heapreplace
from operator import attrgetter

from octavo.core.policies import Rank
from octavo.core.request import Request, Sequence, Status
from octavo.core.scheduler_output import SchedulerOutput

PROMPT_TOKEN_COST = 1.0
DRAWN_TOKEN_COST = 2.0
HEAD_START = 2048.0  # in charged tokens
PASSES, PASSES_A_CLIENT = 256, 2
KEPT_SHARE = 64  # one place of so many in the queue, at least one, is kept for clients with nothing in it
MAX_IDLE_CLIENTS = 1024  # whose counters are kept; the one that left first is forgotten

_order = attrgetter("order")


class _Client:
    __slots__ = ("counter", "num_active", "num_running", "passed_since", "waiting", "weight")

    def __init__(self, weight: float) -> None:
        self.counter = 0.0
        self.weight = weight
        self.num_active = 0  # requests that have not ended
        self.num_running = 0  # of these
        self.waiting: list[Request] = []  # by order
        self.passed_since = 0  # the number of starts when it began to wait, or had its last one


class FairShare:
    is_static = False

    def __init__(self, weights: Mapping[str, float] | None = None, head_start: float = HEAD_START) -> None:
        """`weights` above 0, by client; a client not named has 1, but
        for what its requests say (`client_weight`)."""
        self._weights = dict(weights or {})
        self._head_start = head_start
        self._clients: dict[str, _Client] = {}  # idle ones in the order they became so
        self._num_idle = 0
        self._floor = 0.0  # no client comes in below
        self._num_starts = 0

    def counter(self, client_id: str) -> float:
        """What the client got, by weight; the floor for one that is not known."""
        client = self._clients.get(client_id)
        return self._floor if client is None else client.counter

    # -- what happens ------------------------------------------------------------------------------------------------

    def queued(self, request: Request) -> Rank:
        client = self._clients.get(request.client_id)
        if client is None:
            client = self._clients[request.client_id] = _Client(self._weights.get(request.client_id, 1.0))
            self._num_idle += 1
        if request.client_weight is not None:
            client.weight = request.client_weight
        if not request.rank:  # new
            if client.num_active == 0:
                self._num_idle -= 1
                client.counter = max(client.counter, self._raised_floor())
            client.num_active += 1
        else:
            client.num_running -= 1
        if not client.waiting:
            client.passed_since = self._num_starts
        insort(client.waiting, request, key=_order)
        return (1, request.order)

    def started(self, request: Request, num_tokens: int) -> Rank:
        client = self._clients[request.client_id]
        client.waiting.remove(request)
        client.num_running += 1
        if not request.was_started:
            client.counter += PROMPT_TOKEN_COST * num_tokens / client.weight
        self._num_starts += 1
        client.passed_since = self._num_starts
        return (0, self._num_starts)

    def reranked(self, request: Request) -> Rank:
        return request.rank

    def ended(self, request: Request) -> None:
        client = self._clients[request.client_id]
        if request.status is Status.WAITING:
            client.waiting.remove(request)
        else:
            client.num_running -= 1
        client.num_active -= 1
        if client.num_active == 0:
            self._raised_floor(client.counter)
            self._clients[request.client_id] = self._clients.pop(request.client_id)
            self._num_idle += 1
            self._forget_idle()

    def served(self, sequences: Listing[Sequence], plan: SchedulerOutput) -> None:
        clients = self._clients
        for sequence, draws in zip(sequences, plan.num_samples, strict=True):
            if draws and (client := clients.get(sequence.request.client_id)) is not None:
                client.counter += DRAWN_TOKEN_COST * draws / client.weight

    # -- what is asked -----------------------------------------------------------------------------------------------

    def num_places(self, request: Request, max_queue: int) -> int:
        """The last places are kept for clients with nothing in the queue: one client cannot shut the others out."""
        client = self._clients.get(request.client_id)
        return max_queue - max(max_queue // KEPT_SHARE, 1) if client is not None and client.waiting else max_queue

    def candidates(self, waiting: Listing[Request]) -> Iterator[Request]:
        """The oldest request of the client with the least counter, again after each; of equal ones, of the client that
        runs less, then the oldest. Before them whoever was passed by too often, the longest first."""
        del waiting  # its own queues hold the same
        heap = [(*self._place(client, 0), 0, name) for name, client in self._clients.items() if client.waiting]
        heapify(heap)
        while heap:
            *_, place, name = heap[0]
            client = self._clients[name]
            request = client.waiting[place]
            yield request
            place += request.status is Status.WAITING  # passed: it did not start
            if place < len(client.waiting):
                heapreplace(heap, (*self._place(client, place), place, name))
            else:
                heappop(heap)

    def _place(self, client: _Client, place: int) -> tuple[int, float, int, int]:
        num_passed = self._num_starts - client.passed_since
        most = max(PASSES, PASSES_A_CLIENT * (len(self._clients) - self._num_idle))
        urgency = -num_passed if num_passed >= most else 0
        return urgency, client.counter, client.num_running, client.waiting[place].order

    def precedence(self, request: Request) -> Rank:
        client = self._clients[request.client_id]
        return (client.counter, client.num_running)

    def displaceable(self, candidate: Request, num_rows: int, running: Listing[Request]) -> list[Request]:
        if candidate.was_started:
            return []
        rows: dict[str, int] = {}
        for request in running:
            rows[request.client_id] = rows.get(request.client_id, 0) + request.num_reserved
        own = self._clients[candidate.client_id]
        num_own = rows.get(candidate.client_id, 0)
        most = own.counter + (self._head_start if num_own else 0.0)
        share = (num_own + num_rows) / own.weight
        found = []
        for request in reversed(running[1:]):
            client = self._clients[request.client_id]
            left = rows[request.client_id] - request.num_reserved
            is_ahead = client.counter >= most if not num_own else client.counter > most
            if client is not own and is_ahead and left / client.weight >= share:
                rows[request.client_id] = left
                found.append(request)
        return found[::-1]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _raised_floor(self, last: float = 0.0) -> float:
        """The least counter of the active clients, if it is higher than the floor was; `last` where there is none."""
        active = [client.counter for client in self._clients.values() if client.num_active]
        self._floor = max(self._floor, min(active, default=last))
        return self._floor

    def _forget_idle(self) -> None:
        """Idle clients beyond the limit, and those whose counter says no more than the floor does."""
        if self._num_idle <= MAX_IDLE_CLIENTS:
            return
        idle = [name for name, client in self._clients.items() if client.num_active == 0]
        surplus = [name for name in idle if self._clients[name].counter <= self._floor] or idle[:1]
        for name in surplus:
            del self._clients[name]
        self._num_idle -= len(surplus)
