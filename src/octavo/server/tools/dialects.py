"""How models write tool calls, and which of the ways a chat template speaks.

A dialect is one row of `DIALECTS`: its markers (which may be special tokens), its parser, and in grammars.py the way it
is enforced. Detection looks for the marks that only one family's templates have, the most particular first. A template
that names no mark this file knows has no dialect; one that never mentions tools gets them described by us
(describe.py), in the words of `hermes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from octavo.server.tools.bodies import Accepts, Either, JsonCalls, NamedCall
from octavo.server.tools.channels import Channels
from octavo.server.tools.events import Parser
from octavo.server.tools.marked import Marked
from octavo.server.tools.pythonic import PythonicCalls
from octavo.server.tools.xml_call import XmlCall

DS_CALLS, DS_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DS_CALL, DS_CALL_END, DS_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"

_NAME = r"([^\s<>\[\]{}]{1,256})"
_MISTRAL_HEADER = re.compile(rf"\s*{_NAME}\s*(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*")
_DEEPSEEK_HEADER = re.compile(rf"\s*(?:function{DS_SEP})?{_NAME}(?:{DS_SEP})?\s*(?:```json\s*)?")
_DEEPSEEK_ENDS = tuple(fence + DS_CALL_END + end for fence in ("", "\n```", "```") for end in ("", DS_CALLS_END))


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of one request: names, and what their arguments must be."""

    schemas: Mapping[str, Mapping[str, Any]]

    def has(self, name: str) -> bool:
        return name in self.schemas


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    markers: Sequence[str]  # spellings that must reach the parser also where they are special tokens
    parser: Callable[[Offered], Parser]


def _hermes(_: Offered) -> Parser:
    return Marked(("<tool_call>",), lambda opener: JsonCalls(opener, ("</tool_call>",)))


def _llama(offered: Offered) -> Parser:
    def make(opener: str) -> JsonCalls:
        return JsonCalls(opener, accepts=offered.has, repeats=True)

    return Marked(("<|python_tag|>",), make, bare="{", make_bare=make)


def _pythonic(offered: Offered) -> Parser:
    ends = {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"}

    def make(opener: str) -> PythonicCalls:
        accepts: Accepts = offered.has
        return PythonicCalls(opener, (ends[opener],) if opener else (), accepts=accepts)

    return Marked(tuple(ends), make, bare="[")


def _mistral(_: Offered) -> Parser:
    return Marked(("[TOOL_CALLS]",), lambda opener: Either(opener, _MISTRAL_HEADER))


def _granite(_: Offered) -> Parser:
    return Marked(
        ("<|tool_call|>", "<tool_call>"),
        lambda opener: JsonCalls(opener, ("</tool_call>",) if opener[1] != "|" else ()),
    )


def _phi(_: Offered) -> Parser:
    return Marked(("<|tool_call|>", "functools"), lambda opener: JsonCalls(opener, ("<|/tool_call|>",)))


def _deepseek(_: Offered) -> Parser:
    return Marked((DS_CALLS + DS_CALL, DS_CALL), lambda opener: NamedCall(opener, _DEEPSEEK_HEADER, _DEEPSEEK_ENDS))


def _qwen_coder(offered: Offered) -> Parser:
    return Marked(("<tool_call>", "<function="), lambda opener: XmlCall(opener, offered.schemas))


def _openai(_: Offered) -> Parser:
    return Channels()


_DEEPSEEK_MARKERS = (DS_CALLS, DS_CALLS_END, DS_CALL, DS_CALL_END, DS_SEP)

DIALECTS: Final[Mapping[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        Dialect("hermes", ("<tool_call>", "</tool_call>"), _hermes),
        Dialect("llama3_json", ("<|python_tag|>",), _llama),
        Dialect(
            "pythonic",
            ("<|python_start|>", "<|python_end|>", "<|tool_call_start|>", "<|tool_call_end|>"),
            _pythonic,
        ),
        Dialect("mistral", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), _mistral),
        Dialect("granite", ("<|tool_call|>", "<tool_call>", "</tool_call>"), _granite),
        Dialect("phi4_mini_json", ("<|tool_call|>", "<|/tool_call|>"), _phi),
        Dialect("deepseek_v3", _DEEPSEEK_MARKERS, _deepseek),
        Dialect("deepseek_v31", _DEEPSEEK_MARKERS, _deepseek),
        Dialect("qwen3_coder", ("<tool_call>", "</tool_call>"), _qwen_coder),
        Dialect(
            "openai",
            ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"),
            _openai,
        ),
    )
}
ALIASES: Final = {"qwen3_xml": "qwen3_coder", "llama4_pythonic": "pythonic"}  # vLLM's other names
NAMES: Final[Collection[str]] = (*DIALECTS, *ALIASES)

_TOOLS = re.compile(r"\btools\b")
_LLAMA_MARK = re.compile(r"""['"]parameters\\?['"]\s*:|"parameters": dictionary""")
_LISTED = ("<|tool_call_start|>", "<|tool_list_start|>", "<|python_start|>")
_LISTED_CALL = re.compile(r"\[\s*\w+\(\w+=\w+")  # [func(params_name=params_value ..]: how they are told to call


def named(name: str) -> Dialect:
    return DIALECTS[ALIASES.get(name, name)]


def mentions_tools(template: str) -> bool:
    return _TOOLS.search(template) is not None


def detect(template: str) -> Dialect | None:
    """None: it speaks none of them, though it may speak of tools."""
    name = _detected(template)
    return None if name is None else DIALECTS[name]


def _detected(template: str) -> str | None:
    if "<|channel|>" in template and "<|message|>" in template:
        return "openai"
    if DS_CALL in template:
        return "deepseek_v3" if f"function{DS_SEP}" in template or "```json" in template else "deepseek_v31"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<function=" in template:
        return "qwen3_coder" if "<parameter=" in template and "<tool_call>" in template else None
    if "<arg_key>" in template or "minimax" in template:
        return None  # marked like the others, written otherwise inside
    if any(mark in template for mark in _LISTED) or _LISTED_CALL.search(template):
        return "pythonic"
    if "<|start_of_role|>" in template and "<|tool_call|>" in template:
        return "granite"
    if "functools[" in template or "<|/tool_call|>" in template or ("<|tool|>" in template and "<|/tool|>" in template):
        return "phi4_mini_json"
    if "<tool_call>" in template:
        return "hermes"
    if mentions_tools(template) and ("<|python_tag|>" in template or _LLAMA_MARK.search(template)):
        return "llama3_json" if "<|start_header_id|>" in template else None
    return None
