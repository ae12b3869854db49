"""llguidance as everything here calls it: with limits, and over bytes where no model's tokens matter.

Refuses to hold a grammar. Whoever asks the library something passes `limits()`, or `narrow_limits()` where it is asked
on the step loop.
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
        initial_lexer_fuel=200_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,  # half a kB each
        max_grammar_size=20_000,  # about one kB each; 128 tools have 3,000
        verbose_errors=False,  # their messages would hold what the client sent
    )


def narrow_limits() -> LLParserLimits:
    """Of forms that nothing makes slow: most schemas, and what tools are held to.

    What the library counts it counts after a row of its chart is done, and a row takes time by the cube of the symbols
    that stand for one another. So it is their number that bounds a mask, to hundredths of a second; the other limits
    bound how many such rows there are, and how far what is forced is followed.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=500,
        initial_lexer_fuel=10_000,
        step_lexer_fuel=10_000,
        step_max_items=1_000,
        max_lexer_states=10_000,
        max_grammar_size=320,
        verbose_errors=False,
    )


@cache
def byte_table() -> Any:
    """A tokenizer of bytes; it never changes."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte", slices=[])
