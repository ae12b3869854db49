"""When the idle check looks, and what it does with what it finds."""

from __future__ import annotations

import pytest

from octavo.engine.idle_check import QUICK_SECONDS, TIME_SHARE, IdleCheck


class Accounts:
    """A scheduler whose whole check takes `seconds`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = 0.0
        self.num_drained = self.num_whole = 0
        self.is_wrong = False

    def check_drained(self) -> None:
        self.num_drained += 1
        assert not self.is_wrong

    def check_integrity(self) -> None:
        self.num_whole += 1
        self.now += self.seconds
        assert not self.is_wrong

    @property
    def looks(self) -> tuple[int, int]:
        return self.num_drained, self.num_whole


def check_of(accounts: Accounts, *, strict: bool = False) -> IdleCheck:
    return IdleCheck(accounts, lambda: accounts.now, strict=strict)  # type: ignore[arg-type]


def test_a_small_pool_is_checked_whole_at_every_idle_moment_and_once_after_a_step() -> None:
    accounts = Accounts()
    check = check_of(accounts)
    check.look(0)
    assert accounts.looks == (0, 0), "nothing ran"
    for step in (1, 2, 3):
        check.look(step)
        check.look(step)
        check.look_at_all(step)
        assert accounts.looks == (step, step)


def test_a_large_pool_is_checked_whole_only_in_a_quiet_second_and_not_for_more_than_its_share_of_the_time() -> None:
    accounts = Accounts()
    accounts.seconds = 2 * QUICK_SECONDS
    check = check_of(accounts)
    check.look(1)
    assert accounts.looks == (1, 1)
    accounts.now += 1000.0
    check.look(2)
    assert accounts.looks == (2, 1), "users may be about to ask"
    check.look_at_all(2)
    assert accounts.looks == (2, 2)
    check.look(3)
    accounts.now += 0.9 * accounts.seconds / TIME_SHARE
    check.look_at_all(3)
    assert accounts.looks == (3, 2), "too soon"
    accounts.now += 0.2 * accounts.seconds / TIME_SHARE
    check.look_at_all(3)
    assert accounts.looks == (3, 3), "caught up with"


def test_a_leak_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    accounts = Accounts()
    check = check_of(accounts)
    accounts.is_wrong = True
    check.look(1)
    check.look(1)
    check.look_at_all(1)
    assert check.num_failures == 1
    assert len(caplog.records) == 1
    check.look(2)
    assert check.num_failures == 2


def test_a_leak_raises_where_that_was_asked_for() -> None:
    accounts = Accounts()
    accounts.is_wrong = True
    with pytest.raises(AssertionError):
        check_of(accounts, strict=True).look(1)
