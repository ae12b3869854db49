"""Requests that wait for their grammar: whatever becomes of it is theirs alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from octavo.constraints.grammar import GrammarCompiler
from octavo.core.request import Request
from octavo.engine.grammars import Compiled, PendingGrammars
from octavo.errors import BadRequest, InternalError
from octavo.grammar_spec import GrammarSpec
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.sampling_params import SamplingParams

BREAKS = GrammarSpec("regex", "breaks")


class Compiler(GrammarCompiler):
    def __init__(self) -> None:
        super().__init__(FakeTokenizer(), FakeTokenizer.vocab_size, [257])

    def compile(self, spec: GrammarSpec) -> Any:
        if spec == BREAKS:
            raise RuntimeError("a table at 0x7f00deadbeef is full")
        return super().compile(spec)


def request(request_id: str) -> Request:
    return Request(request_id, (1,), SamplingParams(), seed=0, end_token_ids=(), arrival_time=0.0)


def ready(pending: PendingGrammars) -> dict[str, Compiled]:
    found: dict[str, Compiled] = {}
    while pending:
        pending.wait()
        found |= {each.request.request_id: each for each in pending.take_ready()}
    return found


def test_what_breaks_while_compiling_is_an_error_of_its_request(caplog: pytest.LogCaptureFixture) -> None:
    """vllm#17248, #17313, sglang#4574, TGI#2280: it ended the engine."""
    caplog.set_level(logging.ERROR)
    pending = PendingGrammars(Compiler())
    for name, spec in (("good", "a+"), ("refused", "("), ("broken", "breaks")):
        assert pending.hold(request(name), GrammarSpec("regex", spec))
    assert len(pending) == 3
    found = ready(pending)
    assert found["good"].error is None
    assert isinstance(found["refused"].error, BadRequest)
    assert isinstance(found["broken"].error, InternalError)
    assert "0x" not in found["broken"].error.message
    assert [record.name for record in caplog.records] == ["octavo.engine.grammars"]
    assert not pending.hold(request("again"), GrammarSpec("regex", "a+")), "it is there"
    pending.close()


def test_a_request_that_ended_meanwhile_is_heard_of_no_more() -> None:
    pending = PendingGrammars(Compiler())
    pending.hold(request("gone"), GrammarSpec("regex", "b+"))
    pending.hold(request("stays"), GrammarSpec("regex", "c+"))
    pending.drop("gone")
    pending.drop("never seen")
    assert list(ready(pending)) == ["stays"]
    pending.close()
