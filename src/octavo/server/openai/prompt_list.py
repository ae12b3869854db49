"""What /v1/completions calls prompt and /v1/embeddings input: one or many, all text or all token ids."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.server.state import Loaded
from octavo.server.truncation import Truncation, shortened


def listed(given: str | Sequence[str] | Sequence[int] | Sequence[list[int]]) -> list[str | list[int]]:
    """As a list, whichever of its four forms was sent; a list of ids alone is one prompt."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [[each for each in given if isinstance(each, int)]]
    return [each for each in given if not isinstance(each, int)]


async def encoded(
    loaded: Loaded,
    prompts: Sequence[str | list[int]],
    truncation: Truncation | None,
    *,
    add_special_tokens: bool,
    param: str,
) -> list[list[int]]:
    """Token ids of each, cut as asked. Raises BadRequest, which names `param`."""
    texts = [each for each in prompts if isinstance(each, str)]
    if not texts:
        return [shortened(each, truncation) for each in prompts if not isinstance(each, str)]
    return await loaded.encoder.encode_texts(
        texts, add_special_tokens=add_special_tokens, param=param, truncation=truncation
    )
