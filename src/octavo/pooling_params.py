"""What is made of a prompt's hidden states where a vector is wanted instead of an answer. Plain data, checked here.

Refuses what no vector can be; how many columns there are depends on the model (`check_against_model`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from octavo.errors import BadRequest, check_whole, short_number

Pooling = Literal["mean", "last"]
POOLINGS: Final[tuple[Pooling, ...]] = get_args(Pooling)


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """Raises BadRequest (with `param`) on construction where a value is out of its bounds or of another kind."""

    pooling: Pooling = "mean"  # over all tokens of the prompt, or the last one's state alone
    dimensions: int | None = None  # the first so many columns; None: all
    normalize: bool = True  # to length 1, after the cut

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise BadRequest(f"pooling must be {' or '.join(POOLINGS)}", param="pooling")
        if not isinstance(self.normalize, bool):
            raise BadRequest("normalize must be true or false", param="normalize")
        if self.dimensions is not None:
            check_whole("dimensions", self.dimensions, 1)

    def check_against_model(self, embedding_size: int) -> None:
        """`embedding_size`: columns of the model's final hidden state, 0 where it shows none. Raises BadRequest."""
        if not embedding_size:
            raise BadRequest("this model shows no hidden state; its embeddings cannot be had", param="model")
        if self.dimensions is not None and self.dimensions > embedding_size:
            raise BadRequest(
                f"dimensions is {short_number(self.dimensions)}; this model's embeddings have {embedding_size}, lower "
                "it, or leave it out for all",
                param="dimensions",
            )
