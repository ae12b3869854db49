"""`truncate_prompt_tokens`: what is left of a prompt that is longer than asked for. Refuses to shorten to nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.engine.info import EngineInfo
from octavo.errors import BadRequest

Side = Literal["left", "right"]
_PARAM = "truncate_prompt_tokens"


@dataclass(frozen=True, slots=True)
class Truncation:
    max_tokens: int
    side: Side = "left"  # where tokens are dropped

    @classmethod
    def of(cls, asked: int | None, side: Side | None, info: EngineInfo, max_tokens: int | None) -> Truncation | None:
        """`asked` -1: as long as the context allows with an answer of `max_tokens` behind it. Raises BadRequest."""
        if asked is None:
            if side is not None:
                raise BadRequest(
                    f"truncation_side is for {_PARAM}; set it, or leave the side out", param="truncation_side"
                )
            return None
        if asked == 0:
            raise BadRequest(f"{_PARAM} is 0, which leaves no prompt; it must be -1 or at least 1", param=_PARAM)
        if asked > info.max_model_len:
            raise BadRequest(
                f"{_PARAM} is {asked}, max_model_len is {info.max_model_len} for prompt and answer together; lower it",
                param=_PARAM,
            )
        if asked == -1:
            room = info.max_model_len - (1 if max_tokens is None else max_tokens)
            asked = room if room > 0 else info.max_model_len - 1  # the answer is cut to what is left in any case
        return cls(asked, side or "left")

    def apply(self, token_ids: list[int]) -> list[int]:
        if len(token_ids) <= self.max_tokens:
            return token_ids
        return token_ids[-self.max_tokens :] if self.side == "left" else token_ids[: self.max_tokens]


def shortened(token_ids: list[int], truncation: Truncation | None) -> list[int]:
    return token_ids if truncation is None else truncation.apply(token_ids)
