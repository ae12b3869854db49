"""Grammars over tokens, by llguidance: from what a client said (`GrammarSpec`) to a constraint of one sample.

What it does not take of JSON schemas is rewritten first (`lowering.py`).

Fails closed: what cannot be compiled whole is refused (BadRequest that names the keyword or place), and a grammar that
grows too complex while an answer is drawn ends that answer with an error; no answer goes on unconstrained. Compiling is
bounded by the library's own fuel and may be asked for by several threads; it lets Python's lock go. The compiled ones
are kept, least recently used last, so that a schema sent again costs nothing.

What octavo made of a schema, an expression or choices is compiled under narrow limits first (library.py), under which
following it takes next to no time, and under the wide ones where it does not fit. One that outgrows the narrow ones
while an answer is drawn goes on under the others (`Grammar.widen`): what may be said is the same under both. Grammars
that a client wrote are never narrow: no size makes them harmless.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from octavo.constraints.constraint import Bitmap, ConstraintError, num_words
from octavo.constraints.library import NOTHING_FITS, byte_table, limits, narrow_limits
from octavo.errors import BadRequest
from octavo.grammar_spec import BOUNDED_WHITESPACE, MAX_CHOICES, GrammarSpec
from octavo.outputs import GRAMMAR_ENDED, INVALID_GRAMMAR_CODE

MAX_CACHED: Final = 128  # narrow ones, a few MB each at most
MAX_CACHED_WIDE: Final = 16  # tens of MB each at most
LARK_MARK: Final = "%llguidance"  # what begins so is no GBNF
_MAX_MESSAGE_CHARS: Final = 300
_MAX_NARROW_SOURCE: Final = 8192  # characters; what is forced is spelled as far as it goes for every token
_MAX_SPELLED: Final = 2048
_TOKENS_AT_ONCE: Final = 16  # read with Python's lock held
_MAX_KEPT_TEXTS: Final = 4096
_MAX_KEPT_TEXT: Final = 128  # bytes
_SPECIAL_TOKEN: Final = re.compile(r"<\[[\d,^*\- ]+\]>")


class TokenBytes(Protocol):
    """What a grammar needs of a tokenizer."""

    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def bos_token_id(self) -> int | None: ...

    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...
    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]: ...


def check_grammar(spec: GrammarSpec) -> GrammarSpec:
    """The grammar to be compiled: the same, or what it was rewritten to. Does all that compiling does, for a tokenizer
    of bytes, and begins an answer: what would take an engine too long takes too long here. Raises BadRequest as
    `GrammarCompiler.compile` would, and where no text satisfies the grammar or its first token takes too much."""

    def attempt(ready: GrammarSpec) -> str:
        from llguidance import LLMatcher

        source = _source(ready)
        is_wrong, messages = LLMatcher.validate_grammar_with_warnings(source, None, limits=limits())
        if is_wrong:
            return messages[0]
        bytewise = LLMatcher(byte_table(), _SPECIAL_TOKEN.sub("<[257]>", source), log_level=0, limits=limits())
        if bytewise.is_error():
            return ""  # it names tokens of the model, which are not among bytes; the rest was found right
        allowed = int.from_bytes(bytewise.compute_bitmask(), "little")
        if allowed and not bytewise.is_error():
            bytewise.consume_token((allowed & -allowed).bit_length() - 1)  # the first of them
        return bytewise.get_error() if bytewise.is_error() else ""

    _refuse_endless(spec)
    return _ready(spec, attempt)


def _ready(spec: GrammarSpec, attempt: Callable[[GrammarSpec], str]) -> GrammarSpec:
    """What `attempt` took: as it is or, where it cannot be, rewritten. It says what was wrong, nothing if nothing was.

    Raises BadRequest.
    """
    from octavo.constraints.lowering import lowered, needs_lowering  # here: an engine is mostly given what is ready
    from octavo.constraints.schemas import Unsupported

    problem = ""
    if not needs_lowering(spec):
        problem = attempt(spec)
        if not problem:
            return spec
    try:
        ready = lowered(spec)
    except Unsupported as unsupported:
        raise _refusal(spec, str(unsupported)) from None
    except RecursionError:
        raise _refusal(spec, "it nests too deeply") from None
    if ready == spec:
        raise _refusal(spec, problem or attempt(spec))
    if lowered_problem := attempt(ready):
        raise _refusal(spec, problem or lowered_problem)
    return ready


class _Compiled(NamedTuple):
    matcher: Any  # llguidance.LLMatcher, of which samples get copies
    is_narrow: bool


class GrammarCompiler:
    """For one tokenizer, whose table is built when the first grammar is compiled (tenths of a second)."""

    def __init__(self, tokenizer: TokenBytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`vocab_size`: of the logits; `eos_token_ids`: any of them ends an answer."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = [token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size]
        self._table: Any = None  # llguidance.LLTokenizer
        self._building = threading.Lock()
        self._lock = threading.Lock()
        self._cached: OrderedDict[GrammarSpec, _Compiled] = OrderedDict()
        self.num_compiled = 0
        self.token_bytes = tokenizer.token_bytes

    def is_cached(self, spec: GrammarSpec) -> bool:
        """Whether `compile` has nothing to do but copy; it is the newest then."""
        return self._find(spec) is not None

    def compile(self, spec: GrammarSpec) -> Grammar:
        """A new sample's state. Raises BadRequest."""
        compiled = self._find(spec)
        if compiled is None:
            compiled = self._compile(spec, may_be_narrow=True)
            self._keep(spec, compiled)
        matcher, is_narrow = compiled
        return Grammar(
            matcher.deep_copy(),
            self._vocab_size,
            partial(self._wide, spec) if is_narrow else None,
            on_break=partial(self.forget, spec),
        )

    def forget(self, spec: GrammarSpec) -> None:
        """Copies share a lexer, and one that broke or is held is so for all: the next sample gets a new one."""
        with self._lock:
            self._cached.pop(spec, None)

    def _find(self, spec: GrammarSpec) -> _Compiled | None:
        with self._lock:
            if spec in self._cached:
                self._cached.move_to_end(spec)
            return self._cached.get(spec)

    def _keep(self, spec: GrammarSpec, compiled: _Compiled) -> None:
        with self._lock:
            self.num_compiled += 1
            self._cached[spec] = compiled
            alike = [each for each, its in self._cached.items() if its.is_narrow is compiled.is_narrow]
            for oldest in alike[: -MAX_CACHED if compiled.is_narrow else -MAX_CACHED_WIDE]:
                del self._cached[oldest]

    def _wide(self, spec: GrammarSpec) -> Any:
        """A matcher for a sample that outgrew the narrow limits; others with this grammar begin with wide ones."""
        compiled = self._find(spec)
        if compiled is None or compiled.is_narrow:
            compiled = self._compile(spec, may_be_narrow=False)
            self._keep(spec, compiled)
        return compiled.matcher.deep_copy()

    def _compile(self, spec: GrammarSpec, *, may_be_narrow: bool) -> _Compiled:
        from llguidance import LLMatcher

        compiled: Any = None
        is_narrow = False

        def attempt(ready: GrammarSpec) -> str:
            nonlocal compiled, is_narrow
            source, table = _source(ready), self._token_table()
            if may_be_narrow and not ready.is_written and len(source) <= _MAX_NARROW_SOURCE:
                compiled = LLMatcher(table, source, log_level=0, limits=narrow_limits())
                is_narrow = not compiled.is_error()
            if not is_narrow:
                compiled = LLMatcher(table, source, log_level=0, limits=limits())
            return compiled.get_error() if compiled.is_error() else ""

        _ready(spec, attempt)
        return _Compiled(compiled, is_narrow)

    def _token_table(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._building:
            if self._table is None:
                wrapped = TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids))
                self._table = LLTokenizer(wrapped, n_vocab=self._vocab_size, eos_token=self._eos_token_ids)
            return self._table


class Grammar:
    """A `Constraint`: one sample's place in a grammar."""

    def __init__(
        self,
        matcher: Any,
        vocab_size: int,
        wide: Callable[[], Any] | None = None,
        on_break: Callable[[], None] = lambda: None,
    ) -> None:
        """`wide` makes a matcher with wide limits, where this one has narrow ones. `on_break` is called where the
        grammar cannot go on."""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._wide = wide
        self._on_break = on_break
        self.is_over = False

    @property
    def is_narrow(self) -> bool:
        """No call takes longer than hundredths of a second; it raises where it would, and may go on with `widen`."""
        return self._wide is not None

    def narrow(self, bitmap: Bitmap) -> None:
        mine = np.empty_like(bitmap)
        self.write(mine.ctypes.data, mine.nbytes)
        bitmap &= mine

    def write(self, address: int, num_bytes: int) -> None:
        """Its own bitmap, in memory that is so long and outlives the call. Raises as `narrow` does."""
        self._matcher.unsafe_compute_mask_ptr(address, num_bytes)
        if self._matcher.is_error():
            self._break()

    def accept(self, token_id: int) -> None:
        if self.is_over:
            return
        if not self._matcher.consume_token(token_id):
            self._break()
        self.is_over = self._matcher.is_stopped()

    def follow(self, token_id: int) -> Bitmap:
        """Accepts the token and returns the bitmap behind it. Raises as `accept` does.

        `consume_token` holds Python's lock for as long as it takes, which would stop every thread and whoever waits for
        this one. So the token is tried first with the lock let go, and what that took the other will take.
        """
        tried = np.empty((2, num_words(self._vocab_size)), np.uint32)  # before and behind the token
        self._matcher.unsafe_compute_mask_ptr_with_draft_token(tried.ctypes.data, tried[0].nbytes, [token_id])
        if self._matcher.is_error():
            self._break()
        self.accept(token_id)
        behind: Bitmap = tried[1]
        return behind

    def widen(self) -> None:
        """Begins again under wide limits, at the beginning. Raises BadRequest."""
        assert self._wide is not None
        self._matcher, self._wide, self.is_over = self._wide(), None, False

    def read(self, token_ids: Sequence[int]) -> None:
        """Tokens that were accepted before, by this grammar or another one of the kind. Raises as `accept` does."""
        for first in range(0, len(token_ids), _TOKENS_AT_ONCE):
            if not self._matcher.consume_tokens(token_ids[first : first + _TOKENS_AT_ONCE]):
                self._break()
        self.is_over = self._matcher.is_stopped()

    def _break(self) -> None:
        if self._wide is None:
            self._on_break()
        raise ConstraintError(f"{GRAMMAR_ENDED}: {_short(self._matcher.get_error())}")


class _Vocabulary:
    """The tokenizer as the library wants it."""

    def __init__(self, tokenizer: TokenBytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = [token_id for token_id in range(vocab_size) if tokenizer.is_special(token_id)]
        self.eos_token_id = eos_token_ids[0] if eos_token_ids else tokenizer.eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        self._kept = lru_cache(_MAX_KEPT_TEXTS)(self._encode)

    def __call__(self, text: bytes | str) -> list[int]:
        """Asked for what a grammar forces, as far as it goes, before each of its tokens: the names of a schema, again
        and again, or megabytes of a counted repeat. Only the first token of it is drawn next."""
        if len(text) > _MAX_SPELLED:
            text = text[:_MAX_SPELLED].decode("utf-8", "ignore") if isinstance(text, bytes) else text[:_MAX_SPELLED]
        return self._encode(text) if len(text) > _MAX_KEPT_TEXT else self._kept(text)

    def _encode(self, text: bytes | str) -> list[int]:
        spelled = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(spelled, add_special_tokens=False, parse_special=False)


def _source(spec: GrammarSpec) -> str:
    """In the library's own form. Raises BadRequest."""
    from llguidance import LLMatcher

    match spec.kind:
        case "json_object" | "json_schema":
            options: Any = {"whitespace_flexible": False}
            if spec.whitespace == "bounded":
                options = {"whitespace_pattern": BOUNDED_WHITESPACE}
            schema = spec.source if spec.kind == "json_schema" else '{"type":"object"}'
            try:
                return LLMatcher.grammar_from_json_schema(schema, overrides=options)
            except ValueError as error:
                raise _refusal(spec, str(error)) from None
        case "regex":
            return LLMatcher.grammar_from_regex(spec.source)
        case "choice":
            return LLMatcher.grammar_from_lark(_choice(spec))
        case "grammar":
            return LLMatcher.grammar_from_lark(_lark(spec))


def _choice(spec: GrammarSpec) -> str:
    try:
        choices = json.loads(spec.source)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise BadRequest("choice must be a list of texts, none of them empty", param=spec.param)
    if len(choices) > MAX_CHOICES:
        raise BadRequest(
            f"choice has {len(choices)} texts, the limit is {MAX_CHOICES}; send fewer, or a regex", param=spec.param
        )
    return "start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)


def _refuse_endless(spec: GrammarSpec) -> None:
    """A rule with parameters can stand for another one for ever, and the library does not come back from it. Raises
    BadRequest."""
    if not spec.is_written:
        return
    if spec.source.lstrip().startswith("{"):
        raise _refusal(spec, "a list of grammars in JSON is not taken, but one in Lark's or GBNF's notation")
    if "::" in _lark(spec):
        raise _refusal(spec, 'rules with parameters (::) are not taken; the text "::" can be written as ":" ":"')


def _lark(spec: GrammarSpec) -> str:
    if "::=" not in spec.source or spec.source.startswith(LARK_MARK):
        return spec.source
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(spec.source))
    except Exception as error:  # whatever the converter meets in a hostile text
        raise _refusal(spec, f"it is no GBNF: {error}") from None


def _refusal(spec: GrammarSpec, message: str) -> BadRequest:
    if message.startswith(NOTHING_FITS):
        message = "no text satisfies it"
    return BadRequest(
        f"this {spec.kind.replace('_', ' ')} cannot be enforced: {_short(message)}; change it, or leave it out",
        param=spec.param,
        code=INVALID_GRAMMAR_CODE,
    )


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else line[: _MAX_MESSAGE_CHARS - 3] + "..."
