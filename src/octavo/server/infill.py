"""Fill in the middle (`suffix`): what stands between two texts, as models are trained to be asked for it.

    begin  prompt  hole  suffix  end  -> the answer         each of begin, hole and end one special token

Known from the tokenizer's vocabulary alone. Refuses nothing: a tokenizer without such tokens has no `Infill`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from octavo.sampling_params import SamplingParams
from octavo.server.protocol import TokenizerLike


@dataclass(frozen=True, slots=True)
class _Spelling:
    begin: str
    hole: str
    end: str
    stops: Sequence[str]  # what the model writes when the hole is filled, as far as the tokenizer has it
    has_lead: bool = False  # the tokenizer puts a blank before a text: the suffix must do without


_SPELLINGS: Final = (
    _Spelling(  # Qwen 2.5, CodeGemma, Granite
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    _Spelling(  # StarCoder and those with its tokenizer
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<|endoftext|>", "<fim_pad>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>"),
    ),
    _Spelling("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<|endoftext|>", "<fim-pad>")),  # SantaCoder
    _Spelling("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",), has_lead=True),  # CodeLlama
    _Spelling("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<｜end▁of▁sentence｜>",)),  # DeepSeek
)
_MARK: Final = "☺"  # in few vocabularies as a whole, so what follows it keeps its own tokens


@dataclass(frozen=True, slots=True)
class Infill:
    begin_id: int
    hole_id: int
    end_id: int
    stop_token_ids: tuple[int, ...]
    has_lead: bool

    @classmethod
    def of(cls, tokenizer: TokenizerLike) -> Infill | None:
        """None: it has no tokens for it."""
        special_ids = {text: token_id for token_id, text in tokenizer.special_tokens.items()}
        for spelling in _SPELLINGS:
            ids = [_token_id(tokenizer, special_ids, text) for text in (spelling.begin, spelling.hole, spelling.end)]
            begin, hole, end = ids
            if begin is None or hole is None or end is None:
                continue
            stops = [_token_id(tokenizer, special_ids, text) for text in spelling.stops]
            found = tuple(token_id for token_id in stops if token_id is not None)
            return cls(begin, hole, end, (*found, begin, hole, end), spelling.has_lead)
        return None

    def ended(self, sampling: SamplingParams) -> SamplingParams:
        """The same, but for an answer that ends where the model says that the hole is filled. Raises BadRequest."""
        if sampling.ignore_eos:
            return sampling
        stop_token_ids = tuple(dict.fromkeys((*sampling.stop_token_ids, *self.stop_token_ids)))
        return replace(sampling, stop_token_ids=stop_token_ids)

    def suffix_ids(self, tokenizer: TokenizerLike, suffix: str) -> list[int]:
        if self.has_lead:
            mark = tokenizer.encode(_MARK, add_special_tokens=False)
            ids = tokenizer.encode(_MARK + suffix, add_special_tokens=False)
            if ids[: len(mark)] == mark:
                return ids[len(mark) :]
        return tokenizer.encode(suffix, add_special_tokens=False)

    def prompt(self, lead_ids: Sequence[int], prompt_ids: Sequence[int], suffix_ids: Sequence[int]) -> list[int]:
        """`lead_ids`: what a text begins with in any case, as the beginning of sequence."""
        return [*lead_ids, self.begin_id, *prompt_ids, self.hole_id, *suffix_ids, self.end_id]


def _token_id(tokenizer: TokenizerLike, special_ids: dict[str, int], text: str) -> int | None:
    """Of the one token that is spelled so; some tokenizers have it without calling it special."""
    if text in special_ids:
        return special_ids[text]
    ids = tokenizer.encode(text, add_special_tokens=False)
    return ids[0] if len(ids) == 1 and tokenizer.token_bytes(ids[0]) == text.encode("utf-8") else None
