"""What ends an answer, or its thinking, before the model would: plain data that crosses processes, as grammar_spec.py.

Refuses values out of bounds, with the request's field as `param`; knows no tokenizer and no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from octavo.errors import BadRequest, check_whole

MAX_PATTERN_SIZE: Final = 1024
MAX_MARKER_CHARS: Final = 256
MAX_CLOSING_TOKENS: Final = 64
_MAX_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """An answer ends once its last tokens are one pattern, `min_count` times without a gap. Raises BadRequest."""

    max_pattern_size: int  # tokens of the pattern, up to 1024
    min_count: int  # 2 or more
    min_pattern_size: int = 1

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN_SIZE),
            ("min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size),
            ("min_count", self.min_count, 2, _MAX_INT),
        ):
            check_whole(f"repetition_detection: {name}", value, low, high, param="repetition_detection")

    def __str__(self) -> str:
        return f"{self.min_pattern_size} to {self.max_pattern_size} tokens, {self.min_count} times"


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """After `max_tokens` tokens between the markers the closing tokens are drawn, whatever the model would. Raises
    BadRequest."""

    max_tokens: int  # 0: the block is closed as soon as it is open
    begin: str  # opens the block, in the answer's text with special tokens spelled out
    end: str
    closing_token_ids: tuple[int, ...]
    is_open: bool = False  # the prompt ends inside the block
    may_reopen: bool = False  # the answer may think anywhere, not only at its beginning; all of it is counted together

    def __post_init__(self) -> None:
        param, num_closing = "thinking_token_budget", len(self.closing_token_ids)
        check_whole(f"{param}: max_tokens", self.max_tokens, 0, _MAX_INT, param=param)
        check_whole(f"{param}: the number of closing tokens", num_closing, 1, MAX_CLOSING_TOKENS, param=param)
        for token_id in self.closing_token_ids:
            check_whole(f"{param}: a closing token", token_id, 0, _MAX_INT, param=param)
        for marker in (self.begin, self.end):
            if not 0 < len(marker) <= MAX_MARKER_CHARS:
                raise BadRequest(f"a marker of thinking has 1 to {MAX_MARKER_CHARS} characters", param=param)
