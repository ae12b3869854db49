"""Chat templates: the 48 shared renderings, and that hostile templates are refused at load or at rendering."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import BadRequest, ModelFileError
from octavo.loading import chat_template
from octavo.loading.chat_template import ChatTemplate
from octavo.loading.fake_tokenizer import FAKE_CHAT_TEMPLATE

pytestmark = pytest.mark.security("S3")

DATA = Path(__file__).parents[2] / "data" / "chat_templates"
CASES: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "expected.jsonl").read_text().splitlines()]
USER = [{"role": "user", "content": "Hi"}]


def test_there_are_48_cases() -> None:
    assert len(CASES) == 48


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c['template']}-{c['conversation']}-{c['add_generation_prompt']}"
)
def test_renders_as_expected(case: dict[str, Any]) -> None:
    source = (DATA / f"{case['template']}.jinja").read_text()
    template = ChatTemplate(source, case["bos_token"], case["eos_token"], now=lambda: datetime(2024, 7, 26))

    def render() -> str:
        return template.render(
            case["messages"], tools=case["tools"], add_generation_prompt=case["add_generation_prompt"]
        )

    if "error" in case:
        with pytest.raises(BadRequest):
            render()
    else:
        assert render() == case["text"]


def render(source: str, **kwargs: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>", now=lambda: datetime(2024, 7, 26)).render(USER, **kwargs)


def test_what_templates_in_the_wild_use_works() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2024"
    assert render("{{ {'a': 'é<>&'} | tojson }}") == '{"a": "é<>&"}'
    assert render("{{ tools | tojson(indent=2) }}", tools=[{"a": 1}]) == '[\n  {\n    "a": 1\n  }\n]'
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}") == "2"
    assert render("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}") == "Hi"
    assert render("{{ enable_thinking }}", enable_thinking=True) == "True"
    assert render("{{ messages[0].content.split('i')[0] }}{{ '%s!' % bos_token }}{{ '=' * 3 }}") == "H<s>!==="
    assert "assistant" in ChatTemplate(FAKE_CHAT_TEMPLATE).render(USER)


def test_what_a_template_refuses_is_the_clients_fault_and_told() -> None:
    with pytest.raises(BadRequest, match="Roles must alternate") as caught:
        render("{{ raise_exception('Roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ cycler.__init__.__globals__.os.popen('touch PWNED') }}",
        "{{ '{0}' | attr('format') }}",
        "{{ lipsum.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}",
        "{{ " + "[" * 6000,
        "{{ " + "not " * 20000 + "1 }}",
        "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
        "{% for i in x %}" * 60 + "{% endfor %}" * 60,
        "{{ " + "1+" * 5_000 + "1 }}",
        "{% if x %}",
        "{{ x | no_such_filter }}",
        "x" * (chat_template.MAX_SOURCE_CHARACTERS + 1),
    ],
)  # fmt: skip
def test_hostile_templates_are_refused_at_load(source: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        ChatTemplate(source)
    assert caught.value.message.startswith("chat template")
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''['__cla' ~ 'ss__'].mro() }}",
        "{{ (messages | map(attribute='__class__') | list)[0].mro() }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ [1] * 10 ** 8 }}",
        "{{ 10 ** 1000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].content + none }}",
        "{{ no_such_thing.x }}",
        "{{ strftime_now('%1000000000d') }}",
        "{{ tools | tojson(indent=1000000000) }}",
        "{{ 1 // 0 }}",
    ],
)
def test_hostile_templates_are_refused_at_rendering(source: str) -> None:
    with pytest.raises(BadRequest) as caught:
        render(source)
    message = caught.value.message
    assert "0x" not in message
    assert len(message) < 700


@pytest.mark.parametrize(
    "source", ["{{ ('a' * n) | length }}", "{{ (n * [1]) | length }}", "{{ ((1,) * n) | length }}"]
)
def test_a_repetition_is_bounded_also_where_little_of_it_is_shown(source: str) -> None:
    limit = chat_template.MAX_INTERMEDIATE_LENGTH
    assert render(source, n=limit) == str(limit)
    with pytest.raises(BadRequest, match="may not"):
        render(source, n=limit + 1)


def test_the_prompt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_PROMPT_CHARACTERS", 1000)
    with pytest.raises(BadRequest, match="longer than 1000"):
        render("{% for i in range(100) %}{% for j in range(100) %}xxxxxxxxxxx{% endfor %}{% endfor %}")
    with pytest.raises(BadRequest, match="longer than 1000"):
        render("{% for i in range(100000) %}{{ '' }}{% endfor %}")


def test_nothing_of_a_template_runs_at_load() -> None:
    """Constant expressions were once folded while compiling, which ran their filters and products."""
    ChatTemplate("{{ 'a' | center(1000000000000) }}")
    ChatTemplate("{{ 'a' * 1000000000000 }}")
    ChatTemplate("{% set x = ('a' * 99) | replace('a', 'b' * 99) | center(1000000000000) %}")


@pytest.mark.parametrize("name", ["tools", "add_generation_prompt"])
def test_named_arguments_keep_their_meaning(name: str) -> None:
    render("{{ tools }}{{ add_generation_prompt }}", **{name: None})


@pytest.mark.parametrize("name", ["bos_token", "tokenize", "raise_exception", "_x", "__class__"])
def test_kwargs_may_not_override(name: str) -> None:
    with pytest.raises(BadRequest, match="may not set") as caught:
        render("x", **{name: "y"})
    assert caught.value.param == "chat_template_kwargs"


def test_kwargs_are_bounded() -> None:
    with pytest.raises(BadRequest, match="the limit is 32"):
        render("x", **{f"k{i}": 1 for i in range(33)})


def test_rendering_changes_no_message() -> None:
    messages = [{"role": "user", "content": "Hi", "parts": [1]}]
    ChatTemplate("{% for m in messages %}{{ m }}{% endfor %}").render(messages)
    assert messages == [{"role": "user", "content": "Hi", "parts": [1]}]
