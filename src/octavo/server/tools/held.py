"""The grammar of an answer that may call: text is free, and from a call's marker on the call is held to its tool.

    text --marker--> a call in the dialect's frame, arguments by the tool's schema --its end--> text

What the dialect's parser would read as the beginning of a call can stand nowhere else in the text, so no call is made
that was not held. Refuses (BadRequest) what a syntax cannot say of a tool that is to be held (see grammars.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from octavo.server.tools.dialects import DS_CALL, DS_CALLS
from octavo.server.tools.grammars import FRAMES, MAX_CALLS, OBJECT, Frame, Schemas, framed, written_arguments
from octavo.server.tools.rules import Rules, escaped
from octavo.server.tools.speech import Speech

_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
_BLANKS = r"[ \t\r\n]*"


@dataclass(frozen=True, slots=True)
class _Opening:
    marker: str
    frame: Frame  # begins with the marker


@dataclass(frozen=True, slots=True)
class _Way:
    """How a dialect's calls begin in the midst of text."""

    openings: Sequence[_Opening]
    bare: str = ""  # a character that begins calls where it begins the answer
    barred: Sequence[str] = ()  # what else its parser would read as a call
    barred_patterns: Sequence[str] = ()
    ends_answer: bool = False  # behind calls nothing follows that would not be read as one more


_LLAMA, _PYTHONIC = FRAMES["llama3_json"], FRAMES["pythonic"]
_WAYS: Final[Mapping[str, _Way]] = {
    "hermes": _Way((_Opening("<tool_call>", FRAMES["hermes"]),)),
    "llama3_json": _Way(
        (_Opening("<|python_tag|>", replace(_LLAMA, begin="<|python_tag|>")),), bare="{", ends_answer=True
    ),
    "pythonic": _Way(
        (
            _Opening("<|python_start|>", Frame(_PYTHONIC.call, "<|python_start|>[", ", ", "]<|python_end|>")),
            _Opening("<|tool_call_start|>", Frame(_PYTHONIC.call, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>")),
        ),
        bare="[",
    ),
    "mistral": _Way(
        (
            _Opening("[TOOL_CALLS]", FRAMES["mistral"]),
            _Opening("[TOOL_CALLS]", Frame("[TOOL_CALLS]{name}[ARGS]{args}")),
        )
    ),
    "granite": _Way((_Opening("<|tool_call|>", FRAMES["granite"]), _Opening("<tool_call>", FRAMES["hermes"]))),
    "phi4_mini_json": _Way(
        (
            _Opening("<|tool_call|>", FRAMES["phi4_mini_json"]),
            _Opening("functools[", Frame(OBJECT, "functools[", ", ", "]")),
        ),
        barred_patterns=(rf"functools({_BLANKS}\{{|[ \t\r\n]+\[)",),
    ),
    "deepseek_v3": _Way((_Opening(DS_CALLS, FRAMES["deepseek_v3"]),), barred=(DS_CALL,)),
    "deepseek_v31": _Way((_Opening(DS_CALLS, FRAMES["deepseek_v31"]),), barred=(DS_CALL,)),
    "qwen3_coder": _Way((_Opening("<tool_call>", FRAMES["qwen3_coder"]),), barred=("<function=",)),
}


def of_answers(
    speech: Speech,
    schemas: Schemas,
    strict: Collection[str],
    special_ids: Mapping[str, int],
    *,
    is_thinking: bool,
    max_calls: int | None,
) -> str:
    """Text and any number of calls of these tools; the arguments of those named in `strict` follow their schemas, those
    of the others are any. `is_thinking`: the prompt ends inside the reasoning. Raises BadRequest."""
    made = Rules(special_ids)
    dialect = speech.dialect.name
    arguments = {
        name: written_arguments(made, dialect, name, schema) if name in strict else _any_arguments(made, dialect)
        for name, schema in schemas.items()
    }
    if speech.has_channels:
        return made.source(_turns(made, arguments))
    held = _Held(made, speech, arguments, max_calls)
    return made.source(held.thought() if is_thinking else held.answer(may_think=True))


def _any_arguments(made: Rules, dialect: str) -> str:
    if dialect == "pythonic":
        item = made.rule("keyword", f'/[A-Za-z_][A-Za-z0-9_]*/ "=" {made.json({})}')
        return f"({item} ({made.text(', ')} {item})*)?"
    if dialect == "qwen3_coder":
        end = made.until("\n</parameter>")
        item = made.rule(
            "parameter", f'"<parameter=" /[^<>\\s]+/ {made.text(">" + chr(10))} {end} {made.text(chr(10))}'
        )
        return f"({item})*"
    return made.json(_ANY_OBJECT)


class _Held:
    def __init__(self, made: Rules, speech: Speech, arguments: Mapping[str, str], max_calls: int | None) -> None:
        self._made = made
        self._speech = speech
        self._arguments = arguments
        self._max_calls = max_calls
        self._way = _WAYS[speech.dialect.name]
        markers = [opening.marker for opening in self._way.openings]
        self._barred = tuple(dict.fromkeys([*markers, *self._way.barred]))

    def thought(self) -> str:
        """Reasoning up to its end, if it ends, and the answer."""
        block = self._speech.block
        assert block is not None, "only a block can be thought in"
        answer = self._made.rule("answer", self.answer(may_think=False))
        if self._made.is_special(block.end):
            return f"{self._made.free()}? ({self._made.text(block.end)} {answer})?"
        return f"{self._made.up_to(block.end)} {answer} | {self._made.free(without=[block.end])}?"

    def answer(self, *, may_think: bool) -> str:
        """`may_think`: it may begin with the block of reasoning."""
        firsts = []  # what the first text may not begin with, since it would not be text
        options = []
        block = self._speech.block
        if may_think and block is not None:
            thought = self._made.rule("thought", self.thought())
            options.append(f"{self._made.text(block.begin)} {thought}")
            if not self._made.is_special(block.begin):
                firsts.append(escaped(block.begin))
        if self._way.bare:
            calls = framed(self._made, FRAMES[self._speech.dialect.name], self._arguments, max_calls=self._max_calls)
            after = "" if self._way.ends_answer or self._max_calls == 1 else self._tail()
            options.append(f"/{_BLANKS}/ {calls} {after or self._last()}")
            firsts.append(escaped(self._way.bare))
        not_first = f"{_BLANKS}({'|'.join(firsts)})" if firsts else ""
        options.append(self._segments(not_first))
        return " | ".join(options)

    def _last(self) -> str:
        """Text without calls, or nothing."""
        return (
            ""
            if self._way.ends_answer
            else f"{self._made.free(without=self._barred, patterns=self._way.barred_patterns)}?"
        )

    def _tail(self) -> str:
        """Any number of calls more, and text."""
        most = "*" if self._max_calls is None else f"{{0,{min(self._max_calls, MAX_CALLS) - 1}}}"
        heads = " | ".join(self._calls_behind(opening, "") for opening in self._way.openings)
        return f"({self._made.rule('more', heads)}){most} {self._last()}"

    def _segments(self, not_first: str) -> str:
        """Text, then calls and text any number of times."""
        first = self._made.free(without=self._barred, patterns=self._way.barred_patterns, not_first=not_first)
        if self._max_calls == 0:
            return f"{first}?"
        heads = [self._calls_behind(opening, not_first) for opening in self._way.openings]
        after = self._last() if self._way.ends_answer or self._max_calls == 1 else self._tail()
        return f"{first}? | ({' | '.join(heads)}) {after}"

    def _calls_behind(self, opening: _Opening, not_first: str) -> str:
        made, marker = self._made, opening.marker
        calls = framed(made, opening.frame, self._arguments, max_calls=self._max_calls, opener=marker)
        if made.is_special(marker):
            free = made.free(without=self._barred, patterns=self._way.barred_patterns, not_first=not_first)
            return f"{free}? {made.text(marker)} {calls}"
        others = [each for each in self._barred if each != marker]
        text = made.up_to(marker, without=others, patterns=self._way.barred_patterns, not_first=not_first)
        return f"{text} {calls}"


def _turns(made: Rules, arguments: Mapping[str, str]) -> str:
    """gpt-oss: messages to channels, the last of them perhaps a call."""
    barred = ("<|start|>", "<|channel|>", "<|call|>", "<|return|>", "<|message|>")
    json = "<|constrain|>json<|message|>"
    calls = [
        f"{made.text(before.replace('{name}', name))} {written}"
        for name, written in arguments.items()
        for before in (
            f"<|channel|>commentary to=functions.{{name}} {json}",
            f" to=functions.{{name}}<|channel|>commentary {json}",
        )
    ]
    header = f'{made.text("<|channel|>")} ("analysis" | "commentary" | "final") {made.text("<|message|>")}'
    turn = "turn"
    following = f'{made.text("<|start|>")} "assistant" {turn}'
    if made.is_special("<|end|>"):
        message = f"{header} {made.free(without=barred)}? ({made.text('<|end|>')} {following})?"
    else:
        text = made.up_to("<|end|>", without=barred)
        message = f"{header} ({text} {following} | {made.free(without=(*barred, '<|end|>'))}?)"
    made.define(turn, f"{' | '.join(calls)} | {message}")
    return turn
