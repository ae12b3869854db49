"""A tokenizer without a vocabulary file: one token a byte, and a few special tokens. For the fake model and for tests.

Text of any script round-trips, so a token is often part of a character; that is on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from octavo.loading.tokenizer import check_text

BOS_TOKEN: Final = "<|bos|>"
EOS_TOKEN: Final = "<|eos|>"
FAKE_SPECIAL_TOKENS: Final = (BOS_TOKEN, EOS_TOKEN, "<|im_start|>", "<|im_end|>")

FAKE_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class FakeTokenizer:
    """Ids 0..255 are bytes, 256.. the special tokens in order. `add_special_tokens` adds nothing, as in chat models."""

    vocab_size: int = 256 + len(FAKE_SPECIAL_TOKENS)
    bos_token_id: int | None = 256
    eos_token_id: int | None = 257

    def __init__(self) -> None:
        self._special = {256 + index: token for index, token in enumerate(FAKE_SPECIAL_TOKENS)}
        self._ids = {token: token_id for token_id, token in self._special.items()}
        self._split = re.compile("(" + "|".join(map(re.escape, FAKE_SPECIAL_TOKENS)) + ")")

    @property
    def special_tokens(self) -> Mapping[int, str]:
        return self._special

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,  # noqa: ARG002  (the interface)
        parse_special: bool = True,
    ) -> list[int]:
        check_text(text)
        if not parse_special:
            return list(text.encode())
        ids: list[int] = []
        for piece in self._split.split(text):
            special = self._ids.get(piece)
            ids.extend(piece.encode() if special is None else (special,))
        return ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[list[int]]:
        return [self.encode(text, add_special_tokens=add_special_tokens, parse_special=parse_special) for text in texts]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = (i for i in ids if not (skip_special_tokens and i in self._special))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < 256:
            return bytes((token_id,))
        return self._special.get(token_id, "").encode()

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special
