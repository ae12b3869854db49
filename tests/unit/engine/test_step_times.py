"""Where the time of steps goes: the parts of a step add up to it."""

from __future__ import annotations

import pytest

from octavo.engine.step_times import STEP_PARTS, StepTimes


def test_the_parts_of_a_step_add_up() -> None:
    times = StepTimes()
    times.add(began=10.0, entered=10.5, left=13.0, ended=13.25, model_seconds=2.0)
    times.deliver += 0.125
    assert times.by_part() == {"plan": 0.5, "prepare": 0.5, "execute": 2.0, "commit": 0.25, "deliver": 0.125}
    assert tuple(times.by_part()) == STEP_PARTS


def test_an_executor_that_does_not_tell_is_all_model() -> None:
    times = StepTimes()
    times.add(began=1.0, entered=1.5, left=3.0, ended=3.0, model_seconds=None)
    times.add(began=4.0, entered=4.0, left=4.5, ended=5.0, model_seconds=0.5)
    assert times.by_part() == pytest.approx({"plan": 0.5, "prepare": 0, "execute": 2.0, "commit": 0.5, "deliver": 0})
