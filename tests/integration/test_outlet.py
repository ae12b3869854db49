"""What an engine's outlet hears, and when: the announcement, the deltas, and only then the records."""

from __future__ import annotations

from octavo.engine.engine import Engine
from octavo.outputs import SequenceDelta
from support.engines import ask, assert_drained, make_engine


class Heard:
    """An outlet that looks at the engine's records each time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.news: list[tuple[str, list[str], list[int]]] = []

    def announce(self, request_ids: list[str]) -> None:
        self._note("announced", request_ids)

    def hand_out(self, deltas: list[SequenceDelta]) -> None:
        self._note("handed out", [each.request_id for each in deltas])

    def _note(self, what: str, request_ids: list[str]) -> None:
        num_recorded = [self.engine.describe(name, None)[0].samples[0].num_tokens for name in request_ids]
        self.news.append((what, request_ids, num_recorded))


def test_outputs_are_announced_before_they_are_committed_and_leave_before_they_are_recorded() -> None:
    engine = make_engine()
    heard = Heard(engine)
    engine.add_request(ask("a", "one prompt", max_tokens=2))
    engine.add_request(ask("b", "and another", max_tokens=2))
    made = []
    while engine.has_unfinished:
        made.append(engine.step(heard))
    assert heard.news == [
        ("announced", ["a", "b"], [0, 0]),
        ("handed out", ["a", "b"], [0, 0]),
        ("handed out", ["a", "b"], [1, 1]),
    ]
    assert [[each.request_id for each in deltas] for deltas in made] == [["a", "b"]] * 2
    assert_drained(engine)


def test_of_a_prompt_read_in_pieces_the_last_is_announced_and_one_that_comes_back_is_not() -> None:
    engine = make_engine(max_num_batched_tokens=8, num_blocks=32)
    heard = Heard(engine)
    for name in "abc":
        engine.add_request(ask(name, name * 20, max_tokens=60))
    while engine.has_unfinished:
        engine.step(heard)
    announced = [name for what, names, _ in heard.news if what == "announced" for name in names]
    assert sorted(announced) == ["a", "b", "c"]
    assert engine.stats().num_preemptions > 0
    assert_drained(engine)
