"""S11: what a model says is hostile too: readers of calls and of reasoning are linear, and run nothing of it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import octavo.server.tools
from octavo.engine.engine_request import EngineRequest
from octavo.outputs import SequenceDelta
from octavo.server.config import ServerConfig
from octavo.server.tools.dialects import DIALECTS
from support.attack import taking
from support.fake_engine import ScriptedEngine
from support.http_site import run, site

pytestmark = [pytest.mark.security("S11"), pytest.mark.long]

UNITS = ["{", "<tool_call>", "[f(a=", '{"name": "f", "arguments": "', "\\", '"', "<think>", "</think>", "[TOOL_CALLS]", "<function=f>"]  # fmt: skip
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


TOOLS: dict[str, dict[str, Any]] = {
    "/v1/messages": {"name": "f", "input_schema": {"type": "object"}},
    "/v1/responses": {"type": "function", "name": "f", "parameters": {"type": "object"}},
}


def says(text: str) -> ScriptedEngine:
    def script(_: EngineRequest) -> list[list[SequenceDelta]]:
        pieces = [text[place : place + 64] for place in range(0, len(text), 64)]
        return [
            [SequenceDelta("", 0, piece, (97,), finish_reason="stop" if number == len(pieces) - 1 else None)]
            for number, piece in enumerate(pieces)
        ]

    return ScriptedEngine(script, max_model_len=2**20, context_length=2**20)


async def answer(text: str, name: str, stream: bool) -> None:
    """Of every route that reads calls."""
    async with site(ServerConfig(tool_call_parser=name, reasoning_parser="deepseek_r1"), engine=says(text)) as here:
        asked = 0
        for target, place in taking("tools"):
            if place != "tools" or not target.places("stream"):
                continue
            body = target.body() | {"tools": [TOOLS.get(target.path, TOOL)], "stream": stream}
            response = await here.post(target.url, body)
            assert response.status_code == 200, response.text[:300]
            assert "error" not in response.text[-200:].replace('"error":null', "")
            asked += 1
        assert asked >= 3


def work(text: str, name: str, stream: bool) -> int:
    """Lines of Python that answering takes: the same on every machine, and what a quadratic reader would square."""
    lines = 0

    def trace(frame: Any, *_: Any) -> Any:
        nonlocal lines
        if "octavo" not in frame.f_code.co_filename:
            return None
        lines += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(answer(text, name, stream))
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_twice_the_text_takes_twice_the_work_over_http(name: str, stream: bool) -> None:
    for unit in UNITS:
        short, long = (work(unit * (size // len(unit)), name, stream) for size in (6_400, 12_800))
        assert long <= 2.5 * short + 2000, (unit, short, long)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_a_hundred_thousand_of_anything_are_read(name: str, unit: str) -> None:
    run(answer(unit * (100_000 // len(unit) + 1), name, stream=False))


def test_no_reader_evaluates_what_it_reads() -> None:
    folder = Path(octavo.server.tools.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not names & {"eval", "exec", "compile", "literal_eval"}, path.name
        assert "ast" not in modules, f"{path.name}: its parser recurses"
