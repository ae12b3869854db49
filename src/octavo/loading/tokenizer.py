"""Text to token ids and back, over the `tokenizers` library. Knows no file: others build it from one.

Two views of one vocabulary share its tables: one finds special tokens in the text (`parse_special`), one reads their
spelling as plain text, so that a user's "<|im_end|>" ends nothing. They are built at the first encoding: a process
that only decodes does without. Safe to call from several threads. Decoding is by bytes: `decode(ids)` is the joined
`token_bytes`, so text streamed token by token equals text decoded at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from octavo.errors import BadRequest, ModelFileError
from octavo.loading.byte_level import Spelling, spelled_bytes

MAX_VOCAB_SIZE: Final = 1 << 20
_LONG_TEXT_CHARS: Final = 4096  # the library holds Python's lock while it encodes one text, but not for a batch
T = TypeVar("T")


class TokenizerLike(Protocol):
    """What engine, server and command line need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def special_tokens(self) -> Mapping[int, str]:
        """Special tokens by id, as they are spelled in a prompt."""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Raises BadRequest when the text is no valid Unicode (a lone surrogate)."""

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[list[int]]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Bytes that are no valid UTF-8 become U+FFFD; ids outside the vocabulary add nothing."""

    def token_text(self, token_id: int) -> str:
        """One token alone, for people: part of a character shows as U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; a special token's own spelling; b"" outside the vocabulary."""

    def is_special(self, token_id: int) -> bool: ...


class Tokenizer:
    """See `TokenizerLike`. Built by `gguf_tokenizer.tokenizer_from_gguf` or `json_tokenizer.tokenizer_from_folder`."""

    def __init__(
        self,
        # of two tokenizers.Tokenizer: one finds special tokens, one does not
        build_views: Callable[[], tuple[Any, Any]],
        token_strings: Sequence[str | None],  # by id; None: no such token
        *,
        spelling: Spelling,
        special_token_ids: Sequence[int],
        verbatim_token_ids: Sequence[int] = (),  # spelled as their own text, and not special
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        prefix: tuple[int, ...] = (),  # added by add_special_tokens, beside what the library's post-processor adds
        suffix: tuple[int, ...] = (),
        strip_leading_space: bool = False,  # the encoder puts a space before the text
    ) -> None:
        self._build_views = build_views
        self._token_strings = token_strings
        self._spelling: Spelling = spelling
        self._special = {token_id: token_strings[token_id] or "" for token_id in special_token_ids}
        self._verbatim = frozenset(verbatim_token_ids) | self._special.keys()
        self._bytes: list[bytes | None] = [None] * len(token_strings)  # filled as tokens are met
        self._prefix, self._suffix = list(prefix), list(suffix)
        self._strip_leading_space = strip_leading_space
        self.vocab_size = len(token_strings)
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id

    @functools.cached_property
    def _views(self) -> tuple[Any, Any]:
        return self._build_views()

    @property
    def special_tokens(self) -> Mapping[int, str]:
        return self._special

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        library = self._views[0 if parse_special else 1]
        check_text(text)
        if len(text) > _LONG_TEXT_CHARS:
            return self.encode_batch([text], add_special_tokens=add_special_tokens, parse_special=parse_special)[0]
        ids: list[int] = library.encode(text, add_special_tokens=add_special_tokens).ids
        return self._prefix + ids + self._suffix if add_special_tokens else ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[list[int]]:
        library = self._views[0 if parse_special else 1]
        for text in texts:
            check_text(text)
        encodings = library.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        if add_special_tokens:
            return [self._prefix + encoding.ids + self._suffix for encoding in encodings]
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        special = self._special
        pieces = [self.token_bytes(i) for i in ids if not (skip_special_tokens and i in special)]
        text = b"".join(pieces).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strip_leading_space else text

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            return b""
        known = self._bytes[token_id]
        if known is None:
            token = self._token_strings[token_id] or ""
            verbatim = token_id in self._verbatim
            known = token.encode("utf-8", "replace") if verbatim else spelled_bytes(self._spelling, token)
            self._bytes[token_id] = known
        return known

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special


def check_text(text: str) -> None:
    """Raises BadRequest for a text that UTF-8 cannot hold."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"the text holds a lone surrogate at character {error.start}; send valid Unicode"
            ) from None


def checked_by_library(build: Callable[[], T], where: str) -> T:
    """Runs the library on a file's data; what it raises, panics of its Rust side included, is a ModelFileError."""
    try:
        return build()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # the library's panic exception derives from BaseException
        raise ModelFileError(f"{where}: the tokenizer cannot be built: {str(error)[:200]}") from None


def with_specials_as_text(library: Any) -> Any | None:
    """A second view of a library tokenizer: same model, special tokens read as plain text. None: ids would shift."""
    from tokenizers import Tokenizer as LibraryTokenizer

    plain = LibraryTokenizer(library.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(library, part) is not None:
            setattr(plain, part, getattr(library, part))
    added = library.get_added_tokens_decoder()
    for token_id in sorted(added):
        token = added[token_id]
        (plain.add_special_tokens if token.special else plain.add_tokens)([token])
    if sorted(plain.get_added_tokens_decoder()) != sorted(added):
        return None
    plain.encode_special_tokens = True
    return plain
