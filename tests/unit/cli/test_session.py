"""The engine at a terminal: what breaks a step must pass on, and nothing may wait for a step that cannot come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.cli.session import Session
from octavo.config import EngineConfig
from octavo.sampling_params import SamplingParams

SAMPLING = SamplingParams(max_tokens=4)


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.open(EngineConfig(model="fake", max_model_len=512, max_num_seqs=1)) as opened:
        yield opened


@pytest.mark.parametrize("fault", [OSError, KeyboardInterrupt])
def test_a_step_that_breaks_passes_on_and_closes_the_engine_once(
    session: Session, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    """The plan of a broken step stays in flight, so an engine asked to drain would never say that it is empty."""
    num_steps, num_closed = 0, 0

    def broken(*_: object) -> None:
        nonlocal num_steps
        num_steps += 1
        raise fault("the arena is gone")

    def closed() -> None:
        nonlocal num_closed
        num_closed += 1

    def too_late(*_: object) -> None:
        pytest.fail("the engine was asked again")

    engine = session._engine
    monkeypatch.setattr(engine.executor, "execute", broken)
    monkeypatch.setattr(engine.executor, "close", closed)
    stream = session.stream(session.encode("hello"), SAMPLING)
    step = engine.step

    def only_once() -> object:
        monkeypatch.setattr(engine, "step", too_late)
        return step()

    monkeypatch.setattr(engine, "step", only_once)
    with pytest.raises(fault, match="arena"):
        next(stream)
    session.__exit__(None, None, None)
    assert (num_steps, num_closed) == (1, 1)


def test_a_stream_left_early_frees_its_blocks(session: Session) -> None:
    stream = session.stream(session.encode("hello"), SamplingParams(max_tokens=100))
    next(stream)
    assert session._engine.stats().num_blocks_used > 0
    stream.close()
    stats = session._engine.stats()
    assert (stats.num_blocks_used, stats.num_requests_running) == (0, 0)
