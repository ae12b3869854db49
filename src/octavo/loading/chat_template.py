"""Turns messages into a prompt by a model's chat template. A template is code from a file or a client: hostile.

Runs in jinja2's immutable sandbox. Refuses at construction what does not compile, is too long or nested too deeply, or
reads a private attribute; at rendering what the sandbox refuses, results beyond a limit, and whatever the template
itself refuses. Nothing of a template runs at construction. Time and memory of a rendering are not bounded here: the
server renders in a process it can kill. Plain data in, text out: a worker needs only the source and the messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import BadRequest, ModelFileError

MAX_SOURCE_CHARACTERS: Final = 128 << 10  # the longest in use have some 25,000
MAX_PROMPT_CHARACTERS: Final = 32 << 20
MAX_INTERMEDIATE_LENGTH: Final = 1 << 20  # of a repeated string or list
MAX_KWARGS: Final = 32
RESERVED: Final = frozenset(
    (
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "raise_exception",
        "strftime_now",
        "tokenize",
    )
)
_WIDE_FIELD: Final = re.compile(r"\*|\d{5,}")  # in a format string: a width that comes from data, or is huge


class ChatTemplate:
    """One compiled template. `render` may be called from several threads."""

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        now: Callable[[], datetime] = datetime.now,  # what strftime_now tells
    ) -> None:
        """Raises ModelFileError."""
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = _Environment()
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda layout: _strftime(now(), layout)
        self._template = _compile(environment, source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,  # what this template takes besides; may not name what is given here
    ) -> str:
        """Raises BadRequest: the template refuses these messages, cannot render them, or does what it may not."""
        check_kwargs(kwargs)
        values = {**kwargs, **self._tokens, "messages": messages, "tools": tools}
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(**values, add_generation_prompt=add_generation_prompt):
                length += len(piece)
                if length > MAX_PROMPT_CHARACTERS or len(pieces) > MAX_PROMPT_CHARACTERS // 8:
                    _refuse(f"the prompt it makes is longer than {MAX_PROMPT_CHARACTERS} characters")
                pieces.append(piece)
        except BadRequest:
            raise
        except SecurityError:
            _refuse("it does what a template may not")
        except jinja2.TemplateError as error:  # undefined values among them; the text is the template's or jinja's
            _refuse(f"{error}"[:500])
        except RecursionError:
            _refuse("it recurses too deeply")
        except MemoryError:
            _refuse("it needs too much memory")
        except Exception as error:  # e.g. None + str; the text could hold reprs, so only the kind is told
            _refuse(f"it cannot render these messages ({type(error).__name__})")
        return "".join(pieces)


def check_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Raises BadRequest for names a client may not set (chat_template_kwargs), or too many."""
    if len(kwargs) > MAX_KWARGS:
        raise BadRequest(
            f"chat_template_kwargs has {len(kwargs)} entries, the limit is {MAX_KWARGS}", param="chat_template_kwargs"
        )
    for name in kwargs:
        if name in RESERVED or name.startswith("_"):
            raise BadRequest(f"chat_template_kwargs may not set {name[:80]!r}; remove it", param="chat_template_kwargs")


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks an answer for training; here its body stands for itself."""

    tags = {"generation"}  # noqa: RUF012  (the base class's own form)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _NothingFolded(CodeGenerator):
    """Leaves constant expressions to rendering: folding them would run a template's filters at load."""

    def _output_child_to_const(self, node: Any, frame: Any, finalize: Any) -> str:
        if not isinstance(node, jinja2.nodes.TemplateData):
            raise jinja2.nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with results of repetition and powers bounded, and without the parts only an attack needs."""

    intercepted_binops = frozenset(("*", "**", "%"))
    code_generator_class = _NothingFolded

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        del self.filters["attr"]
        del self.globals["lipsum"]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, str | list | tuple) and isinstance(times, int):
                    if len(sized) * times > MAX_INTERMEDIATE_LENGTH:
                        raise SecurityError("a repetition beyond the limit")
                elif isinstance(times, int) and abs(times) >= 2**256:
                    raise SecurityError("a product beyond the limit")
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise SecurityError("a power beyond the limit")
        if operator == "%" and isinstance(left, str) and _WIDE_FIELD.search(left):
            raise SecurityError("a format field beyond the limit")
        return super().call_binop(context, operator, left, right)


def _compile(environment: _Environment, source: str) -> jinja2.Template:
    if len(source) > MAX_SOURCE_CHARACTERS:
        raise ModelFileError(
            f"chat template: {len(source)} characters, the limit is {MAX_SOURCE_CHARACTERS}; shorten it"
        )
    try:
        tree = environment.parse(source)
        _check_names(tree)
        return environment.from_string(tree)
    except jinja2.TemplateSyntaxError as error:
        raise ModelFileError(f"chat template, line {error.lineno}: {str(error.message)[:300]}") from None
    except (RecursionError, MemoryError):
        raise ModelFileError("chat template: nested too deeply") from None
    except (jinja2.TemplateError, SyntaxError, ValueError, OverflowError) as error:
        raise ModelFileError(f"chat template: {str(error)[:300]}") from None


def _check_names(tree: jinja2.nodes.Template) -> None:
    """Refuses private attributes as soon as they are written down; the sandbox refuses those made at run time."""
    for node in tree.find_all(jinja2.nodes.Getattr):
        _check_name(node.attr, node.lineno)
    for item in tree.find_all(jinja2.nodes.Getitem):
        if isinstance(item.arg, jinja2.nodes.Const):
            _check_name(item.arg.value, item.lineno)
    others = (jinja2.nodes.Include, jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Extends)
    for other in tree.find_all(others):
        raise ModelFileError(f"chat template, line {other.lineno}: it names another template; it must stand alone")


def _check_name(name: object, line: int) -> None:
    if isinstance(name, str) and name.startswith("__"):
        raise ModelFileError(f"chat template, line {line}: it reads the private attribute {name[:80]!r}")


def _refuse(problem: str) -> NoReturn:
    raise BadRequest(f"the chat template cannot render this request: {problem}", param="messages") from None


def _raise_exception(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message)[:500])


def _strftime(moment: datetime, layout: Any) -> str:
    if not isinstance(layout, str) or len(layout) > 100 or re.search(r"%[^%A-Za-z]*\d{3}", layout):
        raise jinja2.TemplateError("strftime_now takes a format of at most 100 characters")
    return moment.strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands, not escaped for HTML as jinja2's own filter would."""
    if isinstance(indent, int) and not 0 <= indent <= 16:
        raise jinja2.TemplateError("tojson takes an indent from 0 to 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= 1024
