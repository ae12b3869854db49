"""The fake tokenizer with tokens to fill in the middle in place of three control characters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.loading.fake_tokenizer import FakeTokenizer

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
BEGIN, HOLE, END = 1, 2, 3  # their ids


class FimTokenizer(FakeTokenizer):
    def __init__(self, spelled: Sequence[str] = QWEN) -> None:
        super().__init__()
        self._special |= dict(enumerate(spelled, 1))
        self._ids = {token: token_id for token_id, token in self._special.items()}
        self._split = re.compile("(" + "|".join(map(re.escape, self._special.values())) + ")")

    def token_bytes(self, token_id: int) -> bytes:
        return self._special[token_id].encode() if token_id in self._special else super().token_bytes(token_id)
