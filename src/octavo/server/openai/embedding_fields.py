"""The request of POST /v1/embeddings, each field named and bounded here.

Names are OpenAI's and, where it has none, vLLM's. Refuses what schemas.py refuses: wrong types, values out of bounds,
and by its name every known field that is not implemented. How a prompt is pooled is no field: vectors of one server
are compared with each other, so it is the server's option.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.server.limits import MAX_MODEL_NAME_CHARS, MAX_PRIORITY, MAX_REQUEST_ID_CHARS, MAX_USER_CHARS
from octavo.server.openai.schemas import MAX_INT, Model, Texts, TokenIds, neutral


class EmbeddingRequest(Model):
    """POST /v1/embeddings"""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    input: str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)] = Field(
        description="a string, a list of strings, a list of token ids or a list of such lists"
    )
    encoding_format: Literal["float", "base64"] | None = None  # absent: float; base64 of little-endian float32
    dimensions: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # the first so many; absent: all
    normalize: bool | None = None  # absent: true, vectors of length 1
    add_special_tokens: bool | None = None  # absent: true
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None  # the last ones; -1: all that fit
    truncation_side: Literal["left", "right"] | None = None  # where tokens are dropped; absent: left
    cache_salt: Annotated[str, Field(min_length=1)] | None = None  # its bytes are counted in embeddings.py
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None  # lower first, under that policy
    user: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = None

    request_id: Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID_CHARS)] | None = None

    messages: Any = neutral(reason="render the conversation first and send its text as input")
    use_activation: Any = neutral(True, reason="send normalize")
    embed_dtype: Any = neutral("float32")
    endianness: Any = neutral("native", "little")
    mm_processor_kwargs: Any = neutral({})
    chat_template: Any = neutral()
