r"""Patterns of JSON schemas (ECMA 262) as expressions over what JSON writes: `^a"` is `a\\"(..)*` there.

A pattern is parsed to sets of characters, sequences, choices and repetitions, and written out again over JSON's
spelling, for the grammar's lexer; whether a known text matches is told here. Refuses (Unsupported) what is no regular
expression (look-around, back-references), word boundaries, properties of Unicode, and anchors anywhere but at the ends.
Texts are spelled one way here: `\"`, `\\`, `\b \f \n \r \t`, `\u00xx` for other control characters,
everything else as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from octavo.constraints.schemas.documents import Unsupported

MAX_REPEATS: Final = 10_000
MAX_DEPTH: Final = 64
_LAST: Final = 0x10FFFF
_SURROGATES: Final = ((0xD800, 0xDFFF),)
_SHORT: Final = {8: r"\\b", 9: r"\\t", 10: r"\\n", 12: r"\\f", 13: r"\\r", 34: r'\\"', 92: r"\\\\"}

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # closed, ascending, apart


@dataclass(frozen=True, slots=True)
class Chars:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Part
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    is_end: bool


Part: TypeAlias = Chars | Sequence | Choice | Repeat | Anchor


def _ranges(*pairs: tuple[int, int]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    found = []
    for low, high in ranges:
        for begin, end in others:
            if begin > high or end < low:
                continue
            if begin > low:
                found.append((low, begin - 1))
            low = end + 1
        if low <= high:
            found.append((low, high))
    return tuple(found)


_ALL: Final[Ranges] = ((0, _LAST),)
_LINE_ENDS: Final = _ranges((10, 10), (13, 13), (0x2028, 0x2029))
_CLASSES: Final = {
    "d": _ranges((48, 57)),
    "w": _ranges((48, 57), (65, 90), (95, 95), (97, 122)),
    "s": _ranges(
        (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
        (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
    ),
}  # fmt: skip
_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_SYNTAX: Final = frozenset("^$\\.*+?()[]{}|/-")
_ANY: Final = Repeat(Chars(_ALL), 0, None)
TEXT: Final = r'([^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(0[0-7be]|0f|1[0-9a-f]))'
_HEX: Final = r"[0-9a-fA-F]"
_QUANTIFIER = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_HEX_ESCAPE = re.compile(rf"x({_HEX}{{2}})|u({_HEX}{{4}})|u\{{({_HEX}{{1,6}})\}}")


class Pattern:
    """One pattern, which matches texts that hold a match."""

    def __init__(self, pattern: str, place: str = "") -> None:
        """Raises Unsupported."""
        self._whole = _whole(_Parser(pattern, place).parse(), pattern, place)

    def quoted(self) -> str:
        """For the lexer: what stands between the quotes of a text that matches."""
        return _written(self._whole)

    def matches(self, text: str) -> bool:
        """Without going back in the text, however the pattern is made."""
        return len(text) in _ends(self._whole, text, {0})


def quoted_text(text: str) -> str:
    """As JSON writes it here, with its quotes."""
    return json.dumps(text, ensure_ascii=False)


class _Parser:
    def __init__(self, pattern: str, place: str) -> None:
        self._pattern = pattern
        self._place = place
        self._at = 0
        self._depth = 0

    def parse(self) -> Part:
        part = self._choice()
        if self._at < len(self._pattern):
            raise self._refused("a ) too many")
        return part

    def _refused(self, why: str) -> Unsupported:
        return Unsupported("pattern", f"{self._pattern[:60]!r}: {why}", self._place)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _choice(self) -> Part:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused("it nests too deeply")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while (char := self._peek()) and char not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self) -> Part:
        char = self._peek()
        self._at += 1
        match char:
            case "^" | "$":
                return Anchor(char == "$")
            case ".":
                return Chars(_without(_ALL, _LINE_ENDS))
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case "\\":
                return Chars(self._escape())
            case "*" | "+" | "?":
                raise self._refused("nothing to repeat")
            case _:
                return Chars(_ranges((ord(char), ord(char))))

    def _group(self) -> Part:
        if self._take("?") and not self._take(":"):
            if self._take("=") or self._take("!") or self._take("<=") or self._take("<!"):
                raise self._refused("look-around is not supported")
            name = re.compile(r"<[A-Za-z_]\w*>").match(self._pattern, self._at)
            if name is None:
                raise self._refused("a group of this kind is not supported")
            self._at = name.end()
        part = self._choice()
        if not self._take(")"):
            raise self._refused("an unclosed group")
        return part

    def _repeated(self, part: Part) -> Part:
        least: int
        most: int | None
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        elif match := _QUANTIFIER.match(self._pattern, self._at):
            self._at = match.end()
            least = int(match.group(1))
            most = least if match.group(2) is None else int(match.group(3)) if match.group(3) else None
            if max(least, most or 0) > MAX_REPEATS:
                raise self._refused(f"more than {MAX_REPEATS} repetitions")
            if most is not None and most < least:
                raise self._refused("the numbers of a repetition are out of order")
        else:
            return part
        if isinstance(part, Anchor):
            raise self._refused("an anchor cannot be repeated")
        self._take("?")  # lazy or not, the same texts match
        if (char := self._peek()) and char in "*+?":
            raise self._refused("nothing to repeat")
        return Repeat(part, least, most)

    def _class(self) -> Ranges:
        is_negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            if not self._peek():
                raise self._refused("an unclosed class")
            low = self._class_atom()
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._class_atom()
                if len(low) != 1 or low[0][0] != low[0][1] or len(high) != 1 or high[0][0] != high[0][1]:
                    raise self._refused("a range between classes")
                if low[0][0] > high[0][0]:
                    raise self._refused("a range is out of order")
                found.append((low[0][0], high[0][0]))
            else:
                found += low
        ranges = _ranges(*found)
        return _without(_ALL, ranges) if is_negated else ranges

    def _class_atom(self) -> Ranges:
        char = self._peek()
        self._at += 1
        if char == "\\":
            if self._take("b"):
                return _ranges((8, 8))
            return self._escape()
        return _ranges((ord(char), ord(char)))

    def _escape(self) -> Ranges:
        if match := _HEX_ESCAPE.match(self._pattern, self._at):
            self._at = match.end()
            code = int(next(filter(None, match.groups())), 16)
            if code > _LAST or 0xD800 <= code <= 0xDFFF:
                raise self._refused("half of a character")
            return _ranges((code, code))
        char = self._peek()
        self._at += 1
        if char.lower() in _CLASSES and char:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else _without(_ALL, ranges)
        if char == "c" and re.match(r"[A-Za-z]", self._peek()):
            self._at += 1
            code = ord(self._pattern[self._at - 1]) % 32
            return _ranges((code, code))
        if char in _CONTROLS and not (char == "0" and self._peek().isdigit()):
            return _ranges((_CONTROLS[char], _CONTROLS[char]))
        if char and char in _SYNTAX:
            return _ranges((ord(char), ord(char)))
        raise self._refused(f"\\{char} is not supported")


def _whole(part: Part, pattern: str, place: str) -> Part:
    """What whole texts match, without anchors."""
    if isinstance(part, Choice):
        return Choice(tuple(_whole(option, pattern, place) for option in part.options))
    parts = list(part.parts) if isinstance(part, Sequence) else [part]
    begins = ends = False
    while parts and parts[0] == Anchor(False):
        del parts[0]
        begins = True
    while parts and parts[-1] == Anchor(True):
        del parts[-1]
        ends = True
    if len(parts) == 1 and not (begins or ends) and isinstance(parts[0], Choice | Sequence):
        return _whole(parts[0], pattern, place)
    if any(_has_anchor(each) for each in parts):
        raise Unsupported("pattern", f"{pattern[:60]!r}: an anchor stands inside", place)
    return Sequence((*(() if begins else (_ANY,)), *parts, *(() if ends else (_ANY,))))


def _has_anchor(part: Part) -> bool:
    match part:
        case Anchor():
            return True
        case Sequence(parts) | Choice(parts):
            return any(map(_has_anchor, parts))
        case Repeat(inner, _, _):
            return _has_anchor(inner)
        case _:
            return False


def _ends(part: Part, text: str, starts: set[int]) -> set[int]:
    """Where a match can end that begins at one of these places."""
    match part:
        case Chars(ranges):
            return {at + 1 for at in starts if at < len(text) and _is_in(ranges, ord(text[at]))}
        case Sequence(parts):
            for each in parts:
                starts = _ends(each, text, starts)
            return starts
        case Choice(options):
            return set().union(*(_ends(each, text, starts) for each in options))
        case Repeat(inner, least, most):
            for _ in range(least):
                before, starts = starts, _ends(inner, text, starts)
                if starts == before:
                    break
            found, count = set(starts), least
            while starts and count != most:
                starts = _ends(inner, text, starts) - found
                found |= starts
                count += 1
            return found
        case Anchor():
            raise AssertionError("anchors are gone")


def _is_in(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _written(part: Part) -> str:
    match part:
        case Chars(ranges):
            return _quoted_chars(ranges)
        case Sequence(parts):
            return "(?:" + "".join(_written(each) for each in parts) + ")"
        case Choice(options):
            return "(?:" + "|".join(_written(each) for each in options) + ")"
        case Repeat(inner, least, most):
            times = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
            times = times or f"{{{least},{'' if most is None else most}}}"
            return f"(?:{_written(inner)}){times}"
        case Anchor():
            raise AssertionError("anchors are gone")


def _class_of(ranges: Ranges) -> str:
    def one(code: int) -> str:
        if chr(code).isascii() and chr(code).isalnum():
            return chr(code)
        return rf"\x{{{code:x}}}"

    inside = "".join(one(low) if low == high else f"{one(low)}-{one(high)}" for low, high in ranges)
    return f"[{inside}]" if inside else r"[^\x{0}-\x{10ffff}]"


def _quoted_chars(ranges: Ranges) -> str:
    plain = _without(_without(ranges, _ranges((0, 31), (34, 34), (92, 92))), _SURROGATES)
    options = [_class_of(plain)] if plain else []
    options += [_SHORT.get(code) or rf"\\u{code:04x}" for code in (*range(32), 34, 92) if _is_in(ranges, code)]
    if not options:
        return _class_of(())
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
