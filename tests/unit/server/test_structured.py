"""Structured outputs over HTTP: the answer has its form, or the request is refused before it runs."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from octavo.constraints.grammar import Grammar, GrammarCompiler
from octavo.errors import BadRequest
from octavo.grammar_spec import GrammarSpec
from octavo.server.grammar_workers import GrammarWorkers
from octavo.server.limits import Limits
from octavo.server.openai.responses import SchemaCheck
from support.http_site import check_error, events, run, site

pytestmark = pytest.mark.security("S10")

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "old": {"type": "boolean"}},
    "required": ["kind", "old"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}
NEEDS_LOWERING = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
WITH_LOWERED = "start: x\nx: %json " + json.dumps(NEEDS_LOWERING | {"x-guidance": {"whitespace_flexible": False}})
FORMS: list[tuple[dict[str, Any], str]] = [
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        r'\{"kind":"(cat|dog)","old":(true|false)\}',
    ),
    ({"structured_outputs": {"regex": "[0-9]{3}x"}}, "[0-9]{3}x"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"structured_outputs": {"grammar": 'start: "a" | "b" "c"'}}, "a|bc"),
    ({"structured_outputs": {"grammar": 'root ::= "a" | "b" "c"'}}, "a|bc"),
    ({"guided_regex": "[0-9]{3}x"}, "[0-9]{3}x"),
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"guided_grammar": 'start: "a" | "b" "c"'}, "a|bc"),
]


@pytest.mark.parametrize(("form", "pattern"), FORMS)
def test_every_sample_has_the_form_whole_and_streamed(form: dict[str, Any], pattern: str) -> None:
    async def go() -> None:
        async with site() as here:
            fields = {"n": 3, "temperature": 1, "seed": 11, "max_tokens": 60} | form
            for ask in (here.chat, here.complete):
                whole = (await ask(**fields)).json()["choices"]
                texts = [each["message"]["content"] if "message" in each else each["text"] for each in whole]
                assert len(texts) == 3
                for choice, text in zip(whole, texts, strict=True):
                    assert re.fullmatch(pattern, text), text
                    assert choice["finish_reason"] == "stop"
                streamed = ["", "", ""]
                for event in events(await ask(stream=True, **fields)):
                    for choice in event["choices"]:
                        streamed[choice["index"]] += choice["delta"]["content"] if "delta" in choice else choice["text"]
                assert streamed == texts

    run(go())


@pytest.mark.parametrize("strict", [True, False, None])
def test_response_format_is_enforced_whether_strict_or_not(strict: bool | None) -> None:
    async def go() -> None:
        async with site() as here:
            wanted = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": strict}}
            blanks = [" ", "\n", "\t"]  # the fake model draws the first token allowed, again and again
            answer = (await here.chat(response_format=wanted, bad_words=blanks, max_tokens=60)).json()
            assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"kind", "old"}

    run(go())


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}}, "not"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "look-around"),
        ({"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "send one of them"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp is not known here"),
        ({"structured_outputs": {"json": {}, "disable_additional_properties": True}}, "additionalProperties: false"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema.schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "json_schema.schema"),
        ({"grammar": 'root ::= "a"'}, "send it as structured_outputs.grammar"),
        ({"json_schema": SCHEMA}, "send it as structured_outputs.json"),
        ({"structured_outputs": {"regex": "a"}, "use_beam_search": True}, "beam search"),
    ],
)
def test_what_cannot_be_enforced_is_a_400_and_never_free_text(form: dict[str, Any], named: str) -> None:
    async def go() -> None:
        async with site() as here:
            for ask in (here.chat, here.complete):
                for stream in (False, True):
                    assert named in check_error(await ask(stream=stream, **form), 400)["message"]
            assert not here.engine.requests

    run(go())


def test_text_and_null_ask_for_nothing() -> None:
    async def go() -> None:
        async with site() as here:
            plain = (await here.chat()).json()["choices"]
            for form in ({"response_format": {"type": "text"}}, {"response_format": None, "structured_outputs": {}}):
                assert (await here.chat(**form)).json()["choices"] == plain

    run(go())


def test_a_schema_can_be_checked_beforehand() -> None:
    async def go() -> None:
        async with site() as here:
            for body, supported in (
                ({"schema": SCHEMA}, True),
                ({"schema": True}, True),
                ({"schema": {}}, True),
                ({"schema": False}, False),
                ({"schema": {"not": {}}}, False),
                ({"schema": {"not": {"type": "string"}}}, True),
                ({"schema": {"uniqueItems": True}}, False),
                ({"structured_outputs": {"regex": "a+"}}, True),
                ({"structured_outputs": {"regex": "(?=a)b"}}, False),
                ({"response_format": {"type": "json_object"}}, True),
            ):
                answer = await here.post("/v1/schema/check", body)
                found = SchemaCheck.model_validate_json(answer.content)
                assert found.supported is supported, body
                assert (found.message is None) is supported
            for body in ({}, {"schema": SCHEMA, "guided_regex": "a"}, {"schema": {"a": "x" * 2**20}}):
                check_error(await here.post("/v1/schema/check", body), 400)

    run(go())


def test_words_and_tokens_that_may_not_and_may_be_drawn() -> None:
    async def go() -> None:
        async with site() as here:
            free = (await here.complete(max_tokens=40)).json()["choices"][0]["text"]
            word = free[3:6]
            assert word in free
            kept = (await here.complete(max_tokens=40, bad_words=[word])).json()["choices"][0]["text"]
            assert word not in kept
            assert kept[:5] == free[:5]
            only = (await here.complete(max_tokens=40, allowed_token_ids=[*b"xy"])).json()["choices"][0]["text"]
            assert set(only) <= set("xy")

    run(go())


def test_a_worker_says_what_cannot_be_compiled_and_remembers_it() -> None:
    async def go() -> None:
        workers = GrammarWorkers(Limits())
        good, bad = GrammarSpec("json_schema", json.dumps(SCHEMA)), GrammarSpec("regex", "(?=a)", param="guided_regex")
        assert await workers.check(good) == good
        for kind, source, is_ours in (
            ("json_schema", json.dumps(NEEDS_LOWERING), True),
            ("grammar", WITH_LOWERED, False),
        ):
            ready = await workers.check(GrammarSpec(kind, source))  # type: ignore[arg-type]
            assert (ready.kind, ready.is_ours) == ("grammar", is_ours)
            assert "uniqueItems" not in ready.source
        pids = {worker._process.pid for worker in workers._pool._idle}
        for _ in range(2):
            with pytest.raises(BadRequest, match="look-around") as raised:
                await workers.check(bad)
            assert raised.value.param == "guided_regex"
        assert {worker._process.pid for worker in workers._pool._idle} == pids
        await workers.close()
        with pytest.raises(BadRequest, match="look-around"):
            await workers.check(bad)  # without a worker
        assert not workers._pool._idle

    run(go())


def test_a_grammar_that_takes_too_long_is_refused_and_its_worker_killed() -> None:
    async def go() -> None:
        workers = GrammarWorkers(Limits(grammar_timeout_seconds=0.001))
        tasks = [asyncio.create_task(workers.check(GrammarSpec("regex", f"(x+x+)+{n}" * 500))) for n in range(3)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(each, BadRequest) and "longer than" in each.message for each in answers)
        await workers.close()

    run(go())


def test_verdicts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        monkeypatch.setattr("octavo.server.grammar_workers._MAX_VERDICTS", 3)
        monkeypatch.setattr("octavo.server.grammar_workers._MAX_VERDICT_BYTES", 100)
        workers = GrammarWorkers(Limits())
        for n in range(6):
            await workers.check(GrammarSpec("regex", f"a{n}"))
        assert len(workers._verdicts) == 3
        await workers.check(GrammarSpec("regex", "b" * 99))
        assert len(workers._verdicts) == 1
        await workers.close()

    run(go())


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"structured_outputs": {"grammar": "root ::= root"}}, "no text satisfies it"),
        ({"structured_outputs": {"grammar": 'start: start "a"'}}, "no text satisfies it"),
        ({"guided_json": {"$ref": "#"}}, "its own condition"),
        ({"guided_regex": "(a{1000}){1000}"}, "too many expressions"),
    ],
)
def test_what_would_break_at_its_first_token_is_a_400_and_reaches_no_step(form: dict[str, Any], named: str) -> None:
    async def go() -> None:
        async with site() as here:
            for stream in (False, True):
                error = check_error(await here.complete(stream=stream, **form), 400)
                assert named in error["message"]
                assert error["param"] in form
            assert not here.engine.requests

    run(go())


@pytest.mark.parametrize(
    ("fields", "kind", "is_written"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", False),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", False),
        ({"structured_outputs": {"json": NEEDS_LOWERING}}, "grammar", False),
        ({"structured_outputs": {"regex": "a+"}}, "regex", False),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", False),
        ({"tools": [TOOL]}, "grammar", False),
        ({"tools": [TOOL], "tool_choice": "required"}, "grammar", False),
        ({"structured_outputs": {"grammar": "start: /a+/"}}, "grammar", True),
        ({"structured_outputs": {"grammar": WITH_LOWERED}}, "grammar", True),
        ({"guided_grammar": "root ::= [a]+"}, "grammar", True),
    ],
)
def test_only_a_grammar_of_the_clients_own_may_have_any_number_of_readings(
    fields: dict[str, Any], kind: str, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is bounded is followed on the step loop itself, so nothing that a client wrote may pass for it."""
    seen: set[GrammarSpec] = set()
    compile_ = GrammarCompiler.compile

    def noted(self: GrammarCompiler, spec: GrammarSpec) -> Grammar:
        seen.add(spec)
        return compile_(self, spec)

    monkeypatch.setattr(GrammarCompiler, "compile", noted)

    async def go() -> None:
        async with site(max_model_len=2048) as here:
            answer = await here.chat(max_tokens=5, **fields)
            assert answer.status_code == 200, answer.text

    run(go())
    assert [(spec.kind, spec.is_written) for spec in seen] == [(kind, is_written)]
