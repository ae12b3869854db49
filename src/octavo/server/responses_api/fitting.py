"""`truncation: auto`: the newest turns of a conversation that fit the model's context.

A turn begins with what a user says; what the system says before the first one always stays, and so does the last turn.
Refuses nothing: where even that is too long, the request is refused as any other. The template is rendered once for a
conversation that fits, else a few times more: the fewest turns to leave out are found by halving. Whoever goes on from
here has the prompt that was found to fit, and renders nothing again.
"""

from __future__ import annotations

from octavo.errors import BadRequest
from octavo.server.openai.conversation import prompt_of
from octavo.server.openai.schemas import ChatRequest, Message
from octavo.server.openai.tool_fields import Asked
from octavo.server.state import Loaded

_MOST_ROOM = 4  # the answer's room is at most a fourth of the context, however long it may become


async def fit(loaded: Loaded, chat: ChatRequest, asked: Asked | None) -> list[int] | None:
    """Leaves out of `chat` what must go. The prompt; None where it was not rendered, or nothing fits. Raises BadRequest
    where the template refuses the conversation."""
    messages = chat.messages
    begin = next((place for place, message in enumerate(messages) if message.role not in ("system", "developer")), 0)
    head, rest = messages[:begin], messages[begin:]
    turns = [place for place, message in enumerate(rest) if place and message.role == "user"]
    context = loaded.info.max_model_len
    room = min(chat.max_tokens or 1, max(1, context // _MOST_ROOM))

    async def rendered(candidate: list[Message]) -> list[int] | None:
        """None where it does not fit."""
        try:
            prompt = await prompt_of(loaded, chat.model_copy(update={"messages": candidate}), asked)
        except BadRequest as error:
            if error.code == "context_length_exceeded":
                return None
            raise
        return prompt if len(prompt) + room <= context else None

    found = await rendered(messages) if turns else None
    if not turns or found is not None:
        return found
    low, high = 0, len(turns) - 1  # the answer is among turns[low..high]
    while low < high:
        middle = (low + high) // 2
        tried = await rendered(head + rest[turns[middle] :])
        if tried is None:
            low = middle + 1
        else:
            high, found = middle, tried
    chat.messages = head + rest[turns[low] :]
    return found
