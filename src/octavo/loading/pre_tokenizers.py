"""How each family cuts text into words before merging: a table by the names GGUF files use.

Refuses names it does not know: a near miss would tokenise silently wrong. Each entry is what that family's own
tokenizer.json says, as patterns applied one after another, every match and every gap a piece of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from octavo.errors import ModelFileError

_ENDINGS: Final = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2: Final = rf"{_ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_DIGIT: Final = r"\p{N}"


def _llama3(digits: str) -> str:
    """The pattern Llama 3 took from its predecessors; `digits` says how many go together."""
    word = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return rf"(?i:{_ENDINGS})|{word}|{digits}|{rest}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    patterns: tuple[str, ...]
    nfc: bool = False  # Unicode normal form C first
    ignore_merges: bool = False  # a word that is itself a token is taken whole
    add_bos: bool = False  # where the file does not say

    def library_pre_tokenizer(self) -> Any:
        """The `tokenizers` object; ends in the byte-level spelling."""
        from tokenizers import Regex, pre_tokenizers

        steps = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2_WORDS: Final = PreTokenizer((_GPT2,))
_GPT2_WORDS_NFC: Final = PreTokenizer((_GPT2,), nfc=True)
_SINGLE_DIGITS: Final = PreTokenizer((_DIGIT, _GPT2))
_LLAMA3: Final = PreTokenizer((_llama3(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_LLAMA3_PLAIN: Final = PreTokenizer((_llama3(r"\p{N}{1,3}"),))
_ASCII_MARKS: Final = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

PRE_TOKENIZERS: Final[dict[str, PreTokenizer]] = {
    # What readers do for files from before the name was recorded.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_WORDS,
    "phi-2": _GPT2_WORDS,
    "mpt": _GPT2_WORDS_NFC,
    "olmo": _GPT2_WORDS_NFC,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": PreTokenizer((_DIGIT, _GPT2), nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _LLAMA3_PLAIN,
    "smaug-bpe": _LLAMA3_PLAIN,
    "qwen2": PreTokenizer((_llama3(_DIGIT),), nfc=True),
    "deepseek-r1-qwen": PreTokenizer((_llama3(_DIGIT),)),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT)),
    "deepseek-v3": PreTokenizer(
        (
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    ),
}


def pre_tokenizer_named(name: str, where: str) -> PreTokenizer:
    """Raises ModelFileError listing the known names."""
    known = PRE_TOKENIZERS.get(name)
    if known is None:
        names = ", ".join(PRE_TOKENIZERS)
        raise ModelFileError(f"{where}: the pre-tokenizer {name[:80]!r} is not supported; supported are {names}")
    return known
