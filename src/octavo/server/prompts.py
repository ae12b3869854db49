"""Text and messages to token ids, without holding up the event loop.

Refuses text so long that no tokenizer could fit it in the context before reading it, and more prompts than one call
may bring before all of them are ids, unless it asked to have them shortened. At most `_NUM_THREADS` long texts are
tokenised at once, whoever left meanwhile. In a conversation, the spelling of a special token inside what a user, a tool
or a document says is encoded as text: it cannot end a turn or begin another (`Guard`). The raw prompts of
/v1/completions are the caller's own and may hold special tokens.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from octavo.engine.info import EngineInfo
from octavo.errors import BadRequest
from octavo.server.infill import Infill
from octavo.server.limits import Limits
from octavo.server.protocol import TemplateLike, TokenizerLike
from octavo.server.truncation import Truncation, shortened

_GUARDED_ROLES = ("user", "tool")
_NUM_THREADS = 2  # a long text takes some 200 bytes a character while the library is at it

Result = TypeVar("Result")


class PromptEncoder:
    def __init__(
        self, tokenizer: TokenizerLike, template: TemplateLike | None, info: EngineInfo, limits: Limits
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._info = info
        self._limits = limits
        spelled = sorted((text for text in tokenizer.special_tokens.values() if text), key=len, reverse=True)
        self._special_ids = {text: token_id for token_id, text in tokenizer.special_tokens.items()}
        self._special = re.compile("|".join(map(re.escape, spelled))) if spelled else None
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenizer")

    async def encode_text(
        self, text: str, *, add_special_tokens: bool, param: str, truncation: Truncation | None = None
    ) -> list[int]:
        """Raises BadRequest."""
        self._check_length(text, param)
        encode = partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        ids = encode() if len(text) <= self._limits.large_text_chars else await self._in_thread(encode)
        return shortened(ids, truncation)

    async def encode_texts(
        self, texts: Sequence[str], *, add_special_tokens: bool, param: str, truncation: Truncation | None = None
    ) -> list[list[int]]:
        """Many, each of them no longer than the context. Raises BadRequest."""
        if len(texts) == 1:
            only = await self.encode_text(
                texts[0], add_special_tokens=add_special_tokens, param=param, truncation=truncation
            )
            return [only]
        for text in texts:
            self._check_length(text, param)
        found: list[list[int]] = []
        num_tokens = 0
        for batch in _batches(texts, self._limits.large_text_chars):
            encode = partial(self._tokenizer.encode_batch, batch, add_special_tokens=add_special_tokens)
            for whole in await self._in_thread(encode):
                ids = shortened(whole, truncation)
                num_tokens += len(ids)
                self._check_tokens(len(ids), num_tokens, param)
                found.append(ids)
        return found

    async def encode_infill(
        self, prompts: Sequence[str | list[int]], suffix: str, infill: Infill, *, add_special_tokens: bool
    ) -> list[list[int]]:
        """Each prompt with the suffix and the hole between them. Raises BadRequest."""
        self._check_length(suffix, "suffix")
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        encoded = iter(await self.encode_texts(texts, add_special_tokens=False, param="prompt") if texts else ())
        lead = self._tokenizer.encode("", add_special_tokens=True) if add_special_tokens else []
        behind = await self._in_thread(lambda: infill.suffix_ids(self._tokenizer, suffix))
        found: list[list[int]] = []
        num_tokens = 0
        for prompt in prompts:
            ids = infill.prompt(lead, next(encoded) if isinstance(prompt, str) else prompt, behind)
            num_tokens += len(ids)
            self._check_tokens(len(ids), num_tokens, "prompt")
            found.append(ids)
        return found

    async def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        add_special_tokens: bool,
        kwargs: Mapping[str, Any],
        documents: Sequence[Mapping[str, str]] | None = None,
        continue_final_message: bool = False,
        truncation: Truncation | None = None,
    ) -> list[int]:
        """`continue_final_message`: the prompt ends with the last message's text. Raises BadRequest: no template, one
        that refuses the conversation or does not show its last message, text too long."""
        template = self._template
        if template is None:
            raise BadRequest(
                "this model has no chat template; use /v1/completions, or start the server with --chat-template",
                param="messages",
            )
        num_chars = sum(len(message["content"]) for message in messages)
        self._check_chars(num_chars, "messages")
        guard = Guard(self._special)
        is_large = num_chars > self._limits.large_text_chars
        shown = await self._in_thread(partial(guard.hide, messages)) if is_large else guard.hide(messages)
        if documents is not None:
            for each in documents:
                self._check_length("".join(each.values()), "documents")
            kwargs = {**kwargs, "documents": guard.hide_texts(documents)}
        if continue_final_message:
            shown = [*shown[:-1], {**shown[-1], "content": shown[-1]["content"] + guard.end_mark}]
        text = await template.render(shown, add_generation_prompt=add_generation_prompt, kwargs=kwargs)
        if continue_final_message:
            text = guard.up_to_end(text)
        self._check_length(text, "messages")
        if guard.is_empty:
            return await self.encode_text(
                text, add_special_tokens=add_special_tokens, param="messages", truncation=truncation
            )
        ids = await self._in_thread(lambda: self._encode_guarded(text, guard, add_special_tokens))
        return shortened(ids, truncation)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _encode_guarded(self, text: str, guard: Guard, add_special_tokens: bool) -> list[int]:
        """The template's own special tokens as such, everything between them as text."""
        assert self._special is not None
        ids = self._tokenizer.encode("", add_special_tokens=True) if add_special_tokens else []
        place = 0
        for match in self._special.finditer(text):
            ids += self._encode_plain(guard.show(text[place : match.start()]))
            ids.append(self._special_ids[match.group()])
            place = match.end()
        return ids + self._encode_plain(guard.show(text[place:]))

    def _encode_plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False) if text else []

    def _check_tokens(self, num_tokens: int, num_of_call: int, param: str) -> None:
        info, limits = self._info, self._limits
        if num_tokens > info.max_model_len:
            raise BadRequest(
                f"a prompt has {num_tokens} tokens; this model's maximum context length is {info.max_model_len} "
                f"tokens, prompt and answer together: shorten it (max_model_len is {info.max_model_len})",
                param=param,
                code="context_length_exceeded",
            )
        if num_of_call > limits.max_work_tokens:
            raise BadRequest(
                f"the prompts have more than {limits.max_work_tokens} tokens, the limit of one call; split it",
                param=param,
            )

    def _check_length(self, text: str, param: str) -> None:
        self._check_chars(len(text), param)

    def _check_chars(self, num_chars: int, param: str) -> None:
        info, limits = self._info, self._limits
        limit = info.max_model_len * limits.max_chars_per_token
        if num_chars > limit:
            raise BadRequest(
                f"{param} has {num_chars} characters, far above what max_model_len {info.max_model_len} can hold; "
                "shorten it",
                param=param,
                code="context_length_exceeded",
            )


def _batches(texts: Sequence[str], num_chars: int) -> Iterator[list[str]]:
    """The texts in order, together while they have no more than so many characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > num_chars:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


class Guard:
    """Hides the spellings of special tokens in what users, tools and documents say while the template is rendered.

    Each becomes a mark of private-use characters with a random part, which no template knows and no text can forge. So
    is the end of a message that is to be continued.
    """

    def __init__(self, special: re.Pattern[str] | None) -> None:
        self._special = special
        self._nonce = secrets.token_hex(8)
        self._hidden: list[str] = []
        self._mark = re.compile(f"\ue000{self._nonce}:(\\d+)\ue001")
        self.end_mark = f"\ue000{self._nonce}:end\ue001"

    @property
    def is_empty(self) -> bool:
        return not self._hidden

    def hide(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        if self._special is None:
            return messages
        return [
            {**message, "content": self._special.sub(self._replace, message["content"])}
            if message["role"] in _GUARDED_ROLES and self._special.search(message["content"])
            else message
            for message in messages
        ]

    def hide_texts(self, documents: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        if self._special is None:
            return [dict(each) for each in documents]
        return [{name: self._special.sub(self._replace, text) for name, text in each.items()} for each in documents]

    def up_to_end(self, text: str) -> str:
        """Raises BadRequest where the template left the marked message out."""
        place = text.rfind(self.end_mark)
        if place < 0:
            raise BadRequest(
                "this model's chat template does not show the last message as it is, so it cannot be continued; leave "
                "continue_final_message out",
                param="continue_final_message",
            )
        return text[:place]

    def show(self, text: str) -> str:
        return self._mark.sub(lambda match: self._hidden[int(match.group(1))], text)

    def _replace(self, match: re.Match[str]) -> str:
        self._hidden.append(match.group())
        return f"\ue000{self._nonce}:{len(self._hidden) - 1}\ue001"
