from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from octavo.core import fair as fair_module
from octavo.core.fair import DRAWN_TOKEN_COST, MAX_IDLE_CLIENTS, PASSES, FairShare
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.errors import QueueFull
from octavo.sampling_params import SamplingParams
from support.core_harness import LETTERS, STOP_ID, Harness
from support.core_policies import make_policies
from support.core_runner import Runner, config, request


def asked(name: str, client_id: str, prompt: range = range(4), **sampling: object) -> Request:
    made = request(name, prompt, **sampling)
    made.client_id = client_id
    return made


class FairRunner(Runner):
    def __init__(self, fair: FairShare, **changes: object) -> None:
        super().__init__(config(**changes))
        self.fair = fair
        self.scheduler = Scheduler(config(**changes), ordering=fair)
        self.requests: dict[str, Request] = {}

    def add(self, name: str, client_id: str, prompt: range = range(4), **sampling: object) -> Request:
        made = self.requests[name] = asked(name, client_id, prompt, **sampling)
        self.scheduler.add(made)
        return made

    def running(self) -> Counter[str]:
        return Counter(r.client_id for r in self.requests.values() if r.status is Status.RUNNING)


# -- who starts ----------------------------------------------------------------------------------------------------------


def test_a_newcomer_goes_before_the_queue_of_another_client() -> None:
    run = FairRunner(FairShare(), max_num_seqs=2)
    for i in range(20):
        run.add(f"a{i}", "a", range(i, i + 4), max_tokens=4)
    run.step()
    run.add("b", "b", range(50, 54), max_tokens=4)
    run.drain()
    ends = [update.request_id for update in run.updates if update.finish_reason]
    assert ends.index("b") <= 2


def test_two_idle_clients_that_come_together_start_by_turns() -> None:
    """The prompt is charged when it starts, so that one client does not take every row of the first step."""
    run = FairRunner(FairShare(), max_num_seqs=8, max_num_batched_tokens=64)
    for client in "ab":
        for i in range(8):
            run.add(f"{client}{i}", client, range(i, i + 4), max_tokens=4)
    run.step()
    assert run.running() == {"a": 4, "b": 4}
    run.drain()


def test_equal_counters_start_by_age_and_one_client_alone_is_first_come_first_served() -> None:
    run = FairRunner(FairShare(), max_num_seqs=1)
    for i in range(5):
        run.add(str(i), "a", range(i, i + 4), max_tokens=3)
    run.drain()
    assert [update.request_id for update in run.updates if update.finish_reason] == list("01234")
    assert run.scheduler.stats().num_preemptions == 0


def test_one_client_cannot_fill_the_queue_to_the_last_place() -> None:
    run = FairRunner(FairShare(), max_queue=128)
    for i in range(126):
        run.add(f"a{i}", "a", max_tokens=1)
    with pytest.raises(QueueFull):
        run.add("refused", "a")
    run.add("b", "b", max_tokens=1)
    with pytest.raises(QueueFull):
        run.add("also refused", "b")
    run.add("c", "c", max_tokens=1)
    with pytest.raises(QueueFull):
        run.add("no place left", "d")
    for name in ("refused", "also refused", "no place left"):
        del run.requests[name]
    run.drain()


@pytest.mark.parametrize("num_waiting", [3, 40])
def test_newcomers_without_end_do_not_starve_a_client_that_got_more(
    num_waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes in level with the least served one, which is the one before it: without a bound, for ever."""
    monkeypatch.setattr(fair_module, "PASSES", 20)
    run = FairRunner(FairShare(), max_num_seqs=2)
    num_come = 0

    def refill() -> None:
        nonlocal num_come
        while run.scheduler.stats().num_waiting < num_waiting:
            run.add(f"new{num_come}", f"client {num_come}", range(num_come, num_come + 4), max_tokens=3)
            num_come += 1

    refill()
    run.add("first", "steady", range(4), max_tokens=30)
    while not run.requests["first"].was_started:
        run.step()
        refill()
    while run.requests["first"].status is not Status.FINISHED:
        run.step()
        refill()
    assert run.fair.counter("steady") > max(run.fair.counter(f"client {n}") for n in range(num_come))

    run.add("second", "steady", range(4), max_tokens=1)
    before, num_passed, most = run.fair._num_starts, 0, max(20, 2 * (num_waiting + 3))
    while not run.requests["second"].was_started:
        run.step()
        refill()
        num_passed = run.fair._num_starts - before
        assert num_passed <= most + 2, "it starves"
    assert num_passed > num_waiting, "newcomers that got less went first"
    run.scheduler.abort_all()
    run.drain()


def test_who_was_passed_by_too_often_goes_first_and_the_longest_of_them_before() -> None:
    fair = FairShare()
    made = {name: asked(name, name[0]) for name in ("a1", "a2", "b1", "c1")}
    for order, each in enumerate(made.values()):
        each.order = order
        each.rank = fair.queued(each)
    fair._clients["c"].counter, fair._clients["b"].counter = 900.0, 100.0

    def names() -> list[str]:
        return [each.request_id for each in fair.candidates(())]

    assert names() == ["a1", "a2", "b1", "c1"]
    fair._num_starts = PASSES
    fair._clients["a"].passed_since = 1
    assert names() == ["b1", "c1", "a1", "a2"]
    fair._clients["b"].passed_since = 1
    assert names() == ["c1", "a1", "a2", "b1"]
    fair._num_starts += 1
    assert names() == ["c1", "a1", "a2", "b1"]


# -- what is charged -----------------------------------------------------------------------------------------------------


def test_prompt_tokens_that_had_to_be_run_and_drawn_ones_are_charged_by_weight() -> None:
    run = FairRunner(FairShare({"b": 4.0}))
    run.add("a", "a", range(12), max_tokens=3)
    run.add("b", "b", range(50, 62), max_tokens=3)
    run.drain()
    assert run.fair.counter("a") == 12 + 3 * DRAWN_TOKEN_COST
    assert run.fair.counter("b") == run.fair.counter("a") / 4
    run.add("again", "a", range(12), max_tokens=1)
    before = run.fair.counter("a")
    run.drain()
    assert run.fair.counter("a") == before + 1 + DRAWN_TOKEN_COST, "cached tokens are free, the last one is run"


def test_being_preempted_is_not_charged_twice() -> None:
    tight, wide = FairRunner(FairShare(), num_blocks=12), FairRunner(FairShare(), num_blocks=64)
    for run in (tight, wide):
        for i in range(3):
            run.add(str(i), "a", range(i * 9, i * 9 + 6), max_tokens=24)
        run.drain()
    assert tight.scheduler.stats().num_preemptions > 0
    assert tight.fair.counter("a") == wide.fair.counter("a")


def test_idle_time_is_not_saved_up() -> None:
    run = FairRunner(FairShare(), max_num_seqs=4)
    run.add("b", "b", max_tokens=1)
    run.drain()
    for i in range(40):
        run.add(f"a{i}", "a", range(i, i + 4), max_tokens=8)
    for _ in range(20):
        run.step()
    run.add("again", "b", max_tokens=1)
    assert run.fair.counter("b") == run.fair.counter("a")
    run.drain()


def test_leaving_for_a_moment_wipes_nothing_out() -> None:
    fair = FairShare()
    run = FairRunner(fair)
    run.add("other", "b", range(4), max_tokens=100)
    run.step()
    run.add("heavy", "a", range(60), max_tokens=8)
    run.step()
    heavy = fair.counter("a")
    run.scheduler.abort("heavy")
    run.add("back", "a", range(60), max_tokens=8)
    assert fair.counter("a") >= heavy > fair.counter("b")
    run.drain()


def test_clients_that_left_are_forgotten_beyond_a_limit() -> None:
    run = FairRunner(FairShare())
    for i in range(MAX_IDLE_CLIENTS + 50):
        run.add(str(i), f"client {i}", max_tokens=1)
        run.drain()
    assert len(run.fair._clients) <= MAX_IDLE_CLIENTS


# -- displacing ----------------------------------------------------------------------------------------------------------


def full_house(num_rows: int = 4, **options: object) -> FairRunner:
    """Every row taken by client a, with more in the queue."""
    run = FairRunner(FairShare(head_start=16.0), max_num_seqs=num_rows, **options)
    for i in range(num_rows + 4):
        run.add(f"a{i}", "a", range(i, i + 4), max_tokens=40)
    run.step()
    assert run.running() == {"a": num_rows}
    return run


def test_a_newcomer_does_not_wait_for_a_row() -> None:
    run = full_house()
    run.add("b", "b", range(50, 54), max_tokens=4)
    run.step()
    assert run.running() == {"a": 3, "b": 1}
    assert run.requests["a3"].num_preemptions == 1, "the one that started last has least to lose"
    assert run.scheduler.stats().num_displaced == 1
    run.drain()
    assert {len(tokens) for name, tokens in run.tokens.items() if name[0] != "b"} == {40}


def test_a_backlogged_newcomer_gets_its_share_of_rows_and_no_more() -> None:
    run = full_house()
    for i in range(8):
        run.add(f"b{i}", "b", range(50 + i, 54 + i), max_tokens=40)
    for _ in range(12):
        run.step()
    assert run.running() == {"a": 2, "b": 2}
    assert run.scheduler.stats().num_displaced == 2
    run.drain()


def test_a_weight_is_a_share_of_rows() -> None:
    run = FairRunner(FairShare({"b": 3.0}, head_start=16.0), max_num_seqs=8)
    for i in range(16):
        run.add(f"a{i}", "a", range(i, i + 4), max_tokens=40)
    run.step()
    for i in range(16):
        run.add(f"b{i}", "b", range(50 + i, 54 + i), max_tokens=40)
    for _ in range(20):
        run.step()
    assert run.running() == {"a": 2, "b": 6}
    run.drain()


def test_more_clients_than_rows_do_not_displace_each_other() -> None:
    run = FairRunner(FairShare(head_start=0.0), max_num_seqs=4)
    for i in range(12):
        run.add(str(i), f"client {i}", range(i, i + 4), max_tokens=20)
    run.drain()
    assert run.scheduler.stats().num_displaced == 0


def test_the_first_in_rank_is_never_displaced() -> None:
    run = FairRunner(FairShare(), max_num_seqs=1)
    first = run.add("a", "a", max_tokens=30)
    run.step()
    run.add("b", "b", range(50, 54), max_tokens=4)
    run.drain()
    assert first.num_preemptions == 0


def test_a_newcomer_gets_blocks_that_another_client_holds() -> None:
    run = FairRunner(FairShare(), num_blocks=28)
    for i in range(3):
        run.add(f"a{i}", "a", range(i * 30, i * 30 + 28), max_tokens=4)
        run.step()
    run.add("b", "b", range(91, 99), max_tokens=2)
    run.step()
    assert run.requests["b"].status is not Status.WAITING
    run.drain()


# -- tokens of a step ----------------------------------------------------------------------------------------------------


def test_a_newcomers_prompt_is_not_behind_the_long_prompts_of_another_client() -> None:
    run = FairRunner(FairShare(), max_num_batched_tokens=32, max_model_len=400, num_blocks=400)
    for i in range(3):
        run.add(f"a{i}", "a", range(i, i + 90), max_tokens=2)
    run.step()
    assert run.plans[-1].num_scheduled_tokens == (32,)
    run.add("b", "b", range(10, 40), max_tokens=2)
    run.step()
    assert run.plans[-1].num_scheduled_tokens[:2] == (1, 30)
    run.step()
    assert run.updates[-1].request_id == "b"
    run.drain()


def test_a_step_with_a_newcomers_short_prompt_is_not_made_longer_by_others_prompts() -> None:
    run = FairRunner(FairShare(), max_num_batched_tokens=64, max_model_len=400, num_blocks=400)
    run.add("a", "a", range(2, 92), max_tokens=2)
    run.step()
    run.add("b", "b", range(10, 18), max_tokens=2)
    run.step()
    assert run.plans[-1].num_scheduled_tokens == (1, 8)
    run.step()
    assert run.plans[-1].num_scheduled_tokens == (25, 1)
    run.drain()


# -- the bound -----------------------------------------------------------------------------------------------------------

NUM_ROWS, LONGEST = 8, 24
BOUND = 2 * NUM_ROWS * (32 + DRAWN_TOKEN_COST * LONGEST)
"""Charged tokens: what a full set of rows can be ahead when the other client's first request comes, twice, as in the
paper's bound for two backlogged clients, where its batch of M tokens is all rows at their longest."""


@pytest.mark.parametrize(("weight_a", "weight_b"), [(1.0, 1.0), (1.0, 2.0), (3.0, 1.0)])
def test_two_backlogged_clients_are_served_by_weight_within_the_bound(weight_a: float, weight_b: float) -> None:
    rng = Random(1)
    fair = FairShare({"a": weight_a, "b": weight_b}, head_start=64.0)
    run = FairRunner(fair, max_num_seqs=NUM_ROWS, max_num_batched_tokens=48, num_blocks=400)
    num_added = Counter[str]()
    widest = 0.0

    def refill() -> None:
        for client in "ab":
            waiting = sum(r.client_id == client and r.status is Status.WAITING for r in run.requests.values())
            for _ in range(4 - waiting):
                num_added[client] += 1
                name = f"{client}{num_added[client]}"
                length = rng.randint(1, 32) if client == "a" else rng.randint(1, 8)
                prompt = tuple(rng.randrange(1, 90) for _ in range(length))
                run.add(name, client, prompt, max_tokens=rng.randint(1, LONGEST))  # type: ignore[arg-type]

    for _ in range(600):
        refill()
        run.step()
        run.requests = {n: r for n, r in run.requests.items() if r.status is not Status.FINISHED}
        widest = max(widest, abs(fair.counter("a") - fair.counter("b")))
    assert min(num_added.values()) > 50
    assert widest <= BOUND, f"{widest} tokens apart"
    served = {client: fair.counter(client) * weight for client, weight in (("a", weight_a), ("b", weight_b))}
    assert served["b"] / served["a"] == pytest.approx(weight_b / weight_a, rel=0.1)


def test_random_newcomers_with_scarce_rows_keep_every_invariant_and_displace_often() -> None:
    num_displaced = num_aborted = 0
    for seed in range(20):
        rng = Random(seed)
        shape = SchedulerConfig(400, 2, 64, max_num_seqs=rng.choice((4, 6, 8)), max_num_batched_tokens=16)
        harness = Harness(shape, rng, depth=int(seed % 4 == 0), policies=make_policies("fair", "least-recompute", 2))
        for _ in range(100):
            client = rng.choice("aaaabc")
            prompt = tuple(rng.choice(LETTERS) for _ in range(rng.randint(1, 24)))
            sampling = SamplingParams(max_tokens=rng.randint(20, 36) if client == "a" else 2, stop_token_ids=(STOP_ID,))
            if len(harness.tracked) < 24:
                harness.add(prompt, sampling, client_id=client, seed=seed)
            elif rng.random() < 0.1:
                harness.abort(rng.choice(list(harness.tracked)))
            harness.step()
        harness.drain()
        num_displaced += harness.scheduler.stats().num_displaced
        num_aborted += harness.scheduler.stats().num_aborted
    assert num_displaced >= 100, num_displaced
    assert num_aborted >= 20, num_aborted
