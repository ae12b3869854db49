"""`truncation: auto`: the newest turns of a conversation that fit the model's context.

A turn begins with what a user says; what the system says before the first one always stays, and so does the last turn.
Refuses nothing: where even that is too long, the request is refused as any other. The template is rendered once for a
conversation that fits, else a few times more: the fewest turns to leave out are found by halving.
"""

from __future__ import annotations

from octavo.errors import BadRequest
from octavo.server.openai.conversation import prompt_of
from octavo.server.openai.schemas import ChatRequest, Message
from octavo.server.openai.tool_fields import Asked
from octavo.server.state import Loaded

_MOST_ROOM = 4  # the answer's room is at most a fourth of the context, however long it may become


async def fitted(loaded: Loaded, chat: ChatRequest, asked: Asked | None) -> list[Message]:
    """Raises BadRequest where the template refuses the conversation."""
    messages = chat.messages
    begin = next((place for place, message in enumerate(messages) if message.role not in ("system", "developer")), 0)
    head, rest = messages[:begin], messages[begin:]
    turns = [place for place, message in enumerate(rest) if place and message.role == "user"]
    context = loaded.info.max_model_len
    room = min(chat.max_tokens or 1, max(1, context // _MOST_ROOM))

    async def fits(candidate: list[Message]) -> bool:
        try:
            prompt = await prompt_of(loaded, chat.model_copy(update={"messages": candidate}), asked)
        except BadRequest as error:
            if error.code == "context_length_exceeded":
                return False
            raise
        return len(prompt) + room <= context

    if not turns or await fits(messages):
        return messages
    low, high = 0, len(turns) - 1  # the answer is among turns[low..high]
    while low < high:
        middle = (low + high) // 2
        if await fits(head + rest[turns[middle] :]):
            high = middle
        else:
            low = middle + 1
    return head + rest[turns[low] :]
