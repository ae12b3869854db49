"""llguidance as everything here calls it: with limits, and over bytes where no model's tokens matter.

Refuses to hold a grammar. Whoever asks the library something passes `limits()`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from llguidance import LLParserLimits

NOTHING_FITS: Final = "NoExtensionBias"  # how the library's message begins


def limits() -> LLParserLimits:
    """Fuel is the library's measure of work, tens of thousands a millisecond."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,  # 1 to 2 kB each
        max_grammar_size=500_000,
        verbose_errors=False,  # their messages would hold what the client sent
    )


@cache
def byte_table() -> Any:
    """A tokenizer of bytes; it never changes."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte", slices=[])
