"""The real engine process with one thing broken: `python broken_engine.py MODE FD`."""

from __future__ import annotations

import signal
import sys
from typing import Any

from octavo.engine import build, process
from octavo.engine.engine import Engine

BREAK_AT_STEP = 5


def broken_build(*arguments: Any, **options: Any) -> Engine:
    mode = sys.argv[1]
    if mode == "build":
        raise ZeroDivisionError("while building")
    engine = build.build_engine(*arguments, **options)
    execute, plan = engine.executor.execute, engine.scheduler.plan
    steps = 0

    def broken_execute(*planned: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == BREAK_AT_STEP:
            if mode == "raise":
                raise OSError("the arena is gone")
            if mode == "hang":
                signal.pause()
        return execute(*planned)

    engine.executor.execute = broken_execute  # type: ignore[method-assign]
    if mode == "stall":
        engine.scheduler.plan = lambda now: None if steps >= BREAK_AT_STEP else plan(now)  # type: ignore[method-assign]
        process.STALL_LIMIT_SECONDS = 0.0  # type: ignore[misc]
    return engine


if __name__ == "__main__":
    real, build_module = build.build_engine, sys.modules["octavo.engine.build"]
    replaced = type("Module", (), {"build_engine": staticmethod(broken_build)})
    sys.modules["octavo.engine.build"] = replaced  # type: ignore[assignment]
    sys.exit(process.main(sys.argv[2:]))
