"""Which dialect a chat template speaks: from the marks that templates of each family have."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.server.tools import reasoning
from octavo.server.tools.dialects import DIALECTS, DS_CALL, DS_CALLS, DS_SEP, detect, mentions_tools, named
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Text, merged
from octavo.server.tools.speech import Readers, Speech

TEMPLATES: list[tuple[str, str | None, bool]] = [  # template, dialect, whether it takes tools
    ("{%- if tools %}<tools>{{ tools | tojson }}</tools> within <tool_call></tool_call>:{% endif %}", "hermes", True),
    ("{% if tools %}<tool_call>\n<function=x>\n<parameter=y>\n1\n</parameter>{% endif %}", "qwen3_coder", True),
    ("{% if tools %}<function=x>{...}</function>{% endif %}", None, True),
    ("{% if tools %}<tool_call>{{ name }}<arg_key>k</arg_key>{% endif %}", None, True),
    (
        '<|start_header_id|>{% if tools is not none %}{"name": f, "parameters": dictionary of it}{{ \'"parameters": \' }}',
        "llama3_json",
        True,
    ),
    ("{% for t in tools %}[func_name1(params_name1=params_value1)]{% endfor %}", "pythonic", True),
    ("<|tool_list_start|>{{ tools }}<|tool_list_end|>", "pythonic", True),
    ("[AVAILABLE_TOOLS] {{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", True),
    ("<|start_of_role|>{% if tools %}respond only with <|tool_call|>{% endif %}", "granite", True),
    ("<|system|>{{ message['content'] }}<|tool|>{{ message['tools'] }}<|/tool|>", "phi4_mini_json", True),
    (f"{DS_CALLS}{DS_CALL}function{DS_SEP}{{{{ name }}}}", "deepseek_v3", False),
    (f"{DS_CALLS}{DS_CALL}{{{{ name }}}}{DS_SEP}", "deepseek_v31", False),
    ("<|start|>system<|message|>{% if tools %}<|channel|>{% endif %}", "openai", True),
    ("{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}", None, False),
]


@pytest.mark.parametrize(("template", "name", "takes_tools"), TEMPLATES)
def test_the_dialect_is_read_from_the_template(template: str, name: str | None, takes_tools: bool) -> None:
    found = detect(template)
    assert (found.name if found else None) == name
    assert mentions_tools(template) is takes_tools


def test_every_dialect_goes_by_its_name_and_by_vllms_other_names() -> None:
    assert all(named(name) is dialect for name, dialect in DIALECTS.items())
    assert named("qwen3_xml") is DIALECTS["qwen3_coder"]
    with pytest.raises(KeyError):
        named("other")


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{{ content.split('</think>')[-1] }}", "</think>"),
        ("[THINK]x[/THINK]", "[/THINK]"),
        ("<seed:think></seed:think>", "</seed:think>"),
        ("{{ messages }}", None),
    ],
)
def test_the_block_of_reasoning_is_read_from_the_template(template: str, end: str | None) -> None:
    found = reasoning.detect(template)
    assert (found.end if found else None) == end


def test_templates_without_tools_speak_no_dialect() -> None:
    folder = Path(__file__).parents[5] / "shared" / "data" / "chat_templates"
    if not folder.is_dir():
        pytest.skip(f"the shared data is not at {folder}")
    for file in folder.glob("*.jinja"):
        assert detect(file.read_text()) is None
        assert not mentions_tools(file.read_text())


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_special_spellings_are_hidden_but_from_the_parser(size: int) -> None:
    speech = Speech.of("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]")
    readers = Readers(speech, {"g": {}}, hidden=("[TOOL_CALLS]", "</s>", "<s>"))
    text = "a <b</s>c[TOOL_CALLS]g{}<s> [TOOL_CALLS]"
    parser = readers.reader()
    found = [event for place in range(0, len(text), size) for event in parser.feed(text[place : place + size])]
    assert merged(found + parser.finish()) == [Text("a <bc"), CallBegin("g"), CallArguments("{}"), CallEnd(), Text(" ")]
