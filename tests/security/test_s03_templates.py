"""S3: a chat template is code from a file, or from a client: sandboxed, bounded, off the event loop, and never a client's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError, ModelFileError
from octavo.server.limits import Limits
from octavo.server.template_workers import TemplateWorkers
from support.attack import Attacker, Target, check_refusal, taking, unharmed, with_bodies
from support.http_site import run
from support.server_process import ServerProcess, serving

pytestmark = [pytest.mark.security("S3"), pytest.mark.long]

NOTHING = "{{ '{0.__class__}'.format('a') }}"  # the sandbox makes nothing of it, and no prompt is a 400
# What a template does when the first message says its number.
AT_REQUEST = [
    "{% for a in range(1000000000) %}x{% endfor %}",
    "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ ['a' * 1000000] * 100000 }}",
    "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "{{ ''[ '_' ~ '_class_' ~ '_' ] }}{{ (''|string)[ ('_' * 2) ~ 'class' ~ ('_' * 2) ].mro() }}",
    "{{ messages.append(1) }}",
    "{{ '%1000000000s' % 'a' }}",
    "{{ 2 ** 100000000 }}",
    NOTHING,
    "{% set ns = namespace(a='x') %}{% for i in range(64) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
]
AT_LOAD = [
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ 'a'|attr('format') }}",
    "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
    "{{ lipsum.__globals__ }}",
]
PLAIN = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its template attacks when it is told to, so that one start is enough for all of it."""
    folder = tmp_path_factory.mktemp("server")
    branches = "".join(
        f"{{% elif messages[-1]['content'] == 'attack {number}' %}}{source}" for number, source in enumerate(AT_REQUEST)
    )
    (folder / "template").write_text("{% if false %}" + branches + "{% else %}" + PLAIN + "{% endif %}")
    options = ("--chat-template", str(folder / "template"), "--max-model-len", "256", "--render-timeout-seconds", "2")
    with serving("fake", folder / "log", options) as started:
        yield started


def rendering() -> list[Target]:
    """Routes whose prompt a template makes."""
    return [target for target, place in taking("messages") if place == "messages"]


@pytest.mark.parametrize("number", range(len(AT_REQUEST)))
def test_a_template_that_runs_wild_is_a_400_on_every_route(
    server: ServerProcess, attacker: Attacker, number: int
) -> None:
    with unharmed(server):
        for target in rendering():
            body = target.body() | {"messages": [{"role": "user", "content": f"attack {number}"}]}
            response = attacker.send(target, body)
            if AT_REQUEST[number] == NOTHING and response.status_code == 200:  # a route that only counts
                assert 0 in (response.json().get("input_tokens"), response.json().get("count"))
            else:
                check_refusal(response, 400)


def test_the_routes_that_render_are_known() -> None:
    assert {"/v1/chat/completions", "/v1/messages", "/api/chat", "/tokenize"} <= {each.path for each in rendering()}


@pytest.mark.parametrize("source", AT_LOAD)
def test_a_hostile_template_is_an_error_at_load(source: str) -> None:
    async def go() -> None:
        workers = TemplateWorkers(source, bos_token="", eos_token="", limits=Limits())
        try:
            with pytest.raises(ModelFileError):
                await workers.check()
        finally:
            await workers.close()

    run(go())


def test_no_route_takes_a_template_from_a_client(server: ServerProcess, attacker: Attacker) -> None:
    found = taking("chat_template", "template")
    assert {target.path for target, _ in found} >= {"/v1/chat/completions", "/tokenize", "/api/generate"}
    with unharmed(server):
        for target, place in found:
            assert target.is_refused(place)
            for value in (PLAIN, AT_REQUEST[0], AT_LOAD[0], "x", {"a": 1}, ["x"]):
                message = check_refusal(attacker.send(target, target.body() | {place: value}), 400)
                assert place in message


def test_the_routes_that_know_no_template_field_do_not_render_one(server: ServerProcess, attacker: Attacker) -> None:
    knowing = {target for target, _ in taking("chat_template", "template")}
    for target in with_bodies():
        if target not in knowing:
            plain = attacker.send(target, target.body())
            sent = attacker.send(target, target.body() | {"chat_template": "{{ 7 * 7 }}", "template": "{{ 7 * 7 }}"})
            assert sent.status_code == plain.status_code


@pytest.mark.parametrize(
    "kwargs",
    [
        {"tokenize": True},
        {"messages": []},
        {"tools": []},
        {"add_generation_prompt": "yes"},
        {"chat_template": PLAIN},
        {"bos_token": "x"},
        {"raise_exception": 1},
        {"_x": 1},
        {"not a name": 1},
        {"x" * 65: 1},
        {f"k{number}": 1 for number in range(33)},
        {"x": "y" * 40_000},
        {"x": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]},
        {"x": 2**70},
        {"self": 1, "context": 1, "environment": 1, "caller": 1} | {f"k{n}": n for n in range(30)},
    ],
)
def test_kwargs_override_nothing_and_are_bounded(server: ServerProcess, attacker: Attacker, kwargs: Any) -> None:
    found = taking("chat_template_kwargs")
    assert len(found) >= 2
    with unharmed(server):
        for target, place in found:
            assert place in check_refusal(attacker.send(target, target.body() | {place: kwargs}), 400)


def test_a_template_file_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    from octavo.loading.front import Front
    from octavo.server.config import ServerConfig
    from octavo.server.text_parts import _template_source

    front = Front.__new__(Front)
    for path in (tmp_path, tmp_path / "none", Path("/dev/null/x")):
        with pytest.raises(ConfigError):
            _template_source(ServerConfig(chat_template=path), front)
