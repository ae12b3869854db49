"""Token ids to text, one token at a time, never half a character. Constant work a token.

Refuses to look ahead or to know stop strings (`stop_strings`). A token's bytes are its own (`token_bytes`), so a UTF-8
decoder that keeps the bytes of an unfinished character is all there is. Invariant: what `push` returned, joined, plus
`flush` is the UTF-8 reading of all tokens' bytes in a row, which is `tokenizer.decode(all ids)`; U+FFFD appears only
where bytes are no UTF-8 whatever follows, or at the end. An answer continues its prompt: where a tokenizer's `decode`
drops the space at the start of a text, it is kept here.
"""

from __future__ import annotations

import codecs
from typing import Protocol


class TextTokenizer(Protocol):
    """What the engine asks of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text."""

    def is_special(self, token_id: int) -> bool: ...


class Detokenizer:
    """Of one sample."""

    __slots__ = ("_decoder", "_skip_special_tokens", "_tokenizer")

    def __init__(self, tokenizer: TextTokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text this token completes; may be empty."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What remains at the end: "" or U+FFFD for the bytes of an unfinished character."""
        return self._decoder.decode(b"", final=True)
