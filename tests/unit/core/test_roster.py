"""The ways between waiting, running and parked that a scheduler's runs reach only by luck."""

from __future__ import annotations

from octavo.core.request import Status
from support.core_runner import Runner, config, request


def samples(runner: Runner) -> dict[int, Status]:
    return {s.index: s.status for s in runner.scheduler.sequences()}


def test_a_parked_sample_that_ends_wakes_nobody() -> None:
    """It held no row, so its end frees none."""
    runner = Runner(config(max_num_seqs=2))
    runner.scheduler.add(request(prompt=range(6), n=4, max_tokens=8))
    updates = runner.step()
    runner.scheduler.finish(updates[3].seq_id)
    runner.scheduler.check_integrity()
    assert samples(runner) == {0: Status.RUNNING, 1: Status.RUNNING, 2: Status.PARKED}


def test_a_running_sample_that_ends_wakes_the_oldest_parked_one() -> None:
    runner = Runner(config(max_num_seqs=2))
    runner.scheduler.add(request(prompt=range(6), n=4, max_tokens=8))
    updates = runner.step()
    runner.scheduler.finish(updates[0].seq_id)
    assert samples(runner) == {1: Status.RUNNING, 2: Status.WAITING, 3: Status.PARKED}
    runner.step()
    assert samples(runner) == {1: Status.RUNNING, 2: Status.RUNNING, 3: Status.PARKED}


def test_a_request_whose_running_samples_all_ended_waits_in_its_old_place() -> None:
    runner = Runner(config(max_num_seqs=1))
    runner.scheduler.add(request("a", range(6), n=2, max_tokens=4))
    runner.scheduler.add(request("b", range(50, 56), max_tokens=4))
    updates = runner.step()
    runner.scheduler.finish(updates[0].seq_id)
    runner.scheduler.check_integrity()
    assert runner.scheduler.stats().num_running == 0
    runner.drain()
    ended = [update.request_id for update in runner.updates if update.finish_reason]
    assert ended == ["a", "b"]


def test_nobody_behind_a_parked_sample_starts_before_it() -> None:
    runner = Runner(config(max_num_seqs=8, num_blocks=8))
    runner.scheduler.add(request("a", range(8), n=3, max_tokens=16))
    while not runner.scheduler.stats().num_parks:
        runner.step()
    runner.scheduler.add(request("b", (50,), max_tokens=1))
    runner.drain()
    ended = [update.request_id for update in runner.updates if update.finish_reason]
    assert ended.index("b") >= 1, "a sample of a ended first"
    assert len(ended) == 4
