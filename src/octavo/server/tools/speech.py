"""How the served model speaks: its dialect of tool calls, its block of reasoning, what its template can be told.

Read once from the chat template, or named by the operator. Refuses (ConfigError) names it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from octavo.errors import ConfigError
from octavo.server.tools import dialects, reasoning
from octavo.server.tools.dialects import Dialect, Offered
from octavo.server.tools.events import CallArguments, CallBegin, CallEnd, Event, Parser, Reasoning, Text
from octavo.server.tools.finder import Finder
from octavo.server.tools.reasoning import Block, Plain, Split
from octavo.server.tools.tidy import Tidy

NO_REASONING: Final = "none"
CHANNEL_NAMES: Final = ("openai_gptoss", "gpt_oss")  # reasoning that the dialect itself splits
REASONING_NAMES: Final[Collection[str]] = (NO_REASONING, *reasoning.BLOCKS, *CHANNEL_NAMES)
_EFFORT = re.compile(r"\breasoning_effort\b")
_DOCUMENTS = re.compile(r"\bdocuments\b")
_NO_SYSTEM = re.compile(r"system role (?:is )?not supported", re.IGNORECASE)  # how such templates refuse it
_SWITCHES = ("enable_thinking", "thinking")


def check_parsers(tool_call_parser: str | None, reasoning_parser: str | None) -> None:
    """Raises ConfigError."""
    for name, given, known in (
        ("tool_call_parser", tool_call_parser, dialects.NAMES),
        ("reasoning_parser", reasoning_parser, REASONING_NAMES),
    ):
        if given is not None and given not in known:
            raise ConfigError(f"{name} is {given!r}; it must be one of {', '.join(sorted(known))}", param=name)


@dataclass(frozen=True, slots=True)
class Speech:
    dialect: Dialect
    block: Block | None  # of reasoning
    describes_tools: bool  # the template does; else they are described by us
    writes_calls: bool  # the template writes earlier calls; else they are written out as text
    takes_system: bool  # the template does not refuse system messages
    takes_effort: bool  # the template knows the variable reasoning_effort
    takes_documents: bool  # and documents
    switches: Sequence[str]  # the template's variables that turn reasoning on and off

    @classmethod
    def of(cls, template: str, tool_call_parser: str | None = None, reasoning_parser: str | None = None) -> Speech:
        """Raises ConfigError."""
        check_parsers(tool_call_parser, reasoning_parser)
        describes = dialects.mentions_tools(template)
        found = dialects.detect(template) if describes or "<|channel|>" in template else None
        dialect = dialects.named(tool_call_parser) if tool_call_parser else found or dialects.DIALECTS["hermes"]
        block = reasoning.detect(template) if dialect.name != "openai" else None
        if reasoning_parser is not None:
            block = reasoning.BLOCKS.get(reasoning_parser)
            if reasoning_parser in CHANNEL_NAMES and tool_call_parser is None:
                dialect = dialects.DIALECTS["openai"]
        return cls(
            dialect=dialect,
            block=block,
            describes_tools=describes,
            writes_calls="tool_calls" in template,
            takes_system=_NO_SYSTEM.search(template) is None,
            takes_effort=_EFFORT.search(template) is not None,
            takes_documents=_DOCUMENTS.search(template) is not None,
            switches=tuple(name for name in _SWITCHES if re.search(rf"\b{name}\b(?!\()", template)),
        )

    @property
    def has_channels(self) -> bool:
        return self.dialect.name == "openai"

    def markers(self, *, with_tools: bool) -> Iterable[str]:
        """What a reader must see of the answer's spelling."""
        if self.block is not None:
            yield self.block.begin
            yield self.block.end
        if with_tools or self.has_channels:
            yield from self.dialect.markers

    def thinks_at(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun the answer's reasoning."""
        return self.block is not None and prompt_end.rstrip().endswith(self.block.begin)


@dataclass(frozen=True, slots=True)
class Readers:
    """Makes a parser for each sample of one request."""

    speech: Speech
    schemas: Mapping[str, Mapping[str, Any]] | None  # of the tools that may be called; None: calls are text
    is_thinking: bool = False  # the prompt ends inside the block
    max_calls: int | None = None
    hidden: Collection[str] = ()  # spellings that no client is to see

    def reader(self) -> Parser:
        speech = self.speech
        parser: Parser = Plain()
        if self.schemas is not None or speech.has_channels:
            max_calls = self.max_calls if self.schemas is not None else 0
            parser = Tidy(speech.dialect.parser(Offered(self.schemas or {})), max_calls=max_calls)
        if speech.block is not None:
            parser = Split(speech.block, parser, is_open=self.is_thinking)
        return Hiding(parser, self.hidden) if self.hidden else parser


def reader_of(readers: Readers | None) -> Parser:
    """Of one sample; where there are none, its text is text."""
    return Plain() if readers is None else readers.reader()


class Hiding:
    """Leaves spellings out of texts: special tokens that a parser had to see and a client did not ask for."""

    def __init__(self, parser: Parser, hidden: Collection[str]) -> None:
        self._parser = parser
        self._finder = Finder(tuple(hidden))
        self._kind: type[Text] | type[Reasoning] | None = None  # of what is held back

    def feed(self, text: str) -> list[Event]:
        return self._shown(self._parser.feed(text))

    def finish(self) -> list[Event]:
        events = self._shown(self._parser.finish())
        self._flush(events)
        return events

    def _shown(self, events: Iterable[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if isinstance(event, CallBegin | CallArguments | CallEnd):
                self._flush(found)
                found.append(event)
                continue
            if self._kind is not type(event):
                self._flush(found)
            self._kind = type(event)
            text = event.text
            while text:
                before, _, text = self._finder.feed(text)
                if before:
                    found.append(type(event)(before))
        return found

    def _flush(self, found: list[Event]) -> None:
        held = self._finder.finish()
        if held and self._kind is not None:
            found.append(self._kind(held))
        self._kind = None
