"""Where the time of steps goes, by part: what a step costs beside the model itself is the engine's to keep small.

Refuses a clock of its own: it is told. Called by `Engine.step`, and by the engine process for what it adds. Invariant:
the parts of a step add up to its time, from the step's begin to its outputs being on their way.
"""

from __future__ import annotations

from typing import Final

STEP_PARTS: Final = (
    "plan",  # deadlines, scheduling, blocks moved from and to tiers
    "prepare",  # the executor's work around the model: rows and arrays laid out, results read
    "execute",  # the model itself, tokens drawn
    "commit",  # the scheduler's accounts, text and stop strings of each token
    "deliver",  # records, memory given back, outputs sent
)


class StepTimes:
    def __init__(self) -> None:
        self.plan = self.prepare = self.execute = self.commit = self.deliver = 0.0

    def add(self, began: float, entered: float, left: float, ended: float, model_seconds: float | None) -> None:
        """Moments at which a step began, the executor was entered and left, and the scheduler had taken it in;
        `model_seconds`: of the executor's time, inside the model; None: all of it."""
        inside = left - entered if model_seconds is None else model_seconds
        self.plan += entered - began
        self.prepare += left - entered - inside
        self.execute += inside
        self.commit += ended - left

    def by_part(self) -> dict[str, float]:
        """Seconds since the start."""
        return {part: getattr(self, part) for part in STEP_PARTS}
