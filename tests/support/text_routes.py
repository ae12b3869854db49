"""Every route that writes text, asked and read alike: what must hold of one must hold of all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from support.http_site import Site

_REASONS = {"max_tokens": "length", "max_output_tokens": "length", "stop_sequence": "stop", "end_turn": "stop"}


class Said(NamedTuple):
    """An answer's text, and why it ended in OpenAI's words."""

    text: str
    reason: str | None


@dataclass(frozen=True)
class TextRoute:
    """`length` and `stop` are the fields' names, `prompt` says where a prompt's text stands."""

    path: str
    prompt: str = "messages"
    length: str = "max_tokens"
    stop: str = "stop"
    options: str = ""  # the field that holds those of sampling, "": they stand beside the prompt

    def __str__(self) -> str:
        return self.path

    def body(
        self, prompt: str = "hello", *, length: int = 8, stop: Any = None, stream: bool = False, **fields: Any
    ) -> dict[str, Any]:
        """Greedy."""
        sampling: dict[str, Any] = {"temperature": 0, self.length: length}
        if stop is not None:
            sampling[self.stop] = [stop] if self.stop == "stop_sequences" and isinstance(stop, str) else stop
        said: Any = [{"role": "user", "content": prompt}] if self.prompt == "messages" else prompt
        inside = {self.options: sampling} if self.options else sampling
        return {self.prompt: said, "stream": stream, **inside, **fields}

    async def post(self, here: Site, prompt: str = "hello", **fields: Any) -> httpx.Response:
        return await here.post(self.path, self.body(prompt, **fields))

    async def say(self, here: Site, prompt: str = "hello", **fields: Any) -> Said:
        response = await self.post(here, prompt, **fields)
        assert response.status_code == 200, response.text
        return said_in_stream(response.text) if fields.get("stream") else said_in(response.json())


TEXT_ROUTES = (
    TextRoute("/v1/chat/completions"),
    TextRoute("/v1/completions", prompt="prompt"),
    TextRoute("/v1/messages", stop="stop_sequences"),
    TextRoute("/v1/responses", prompt="input", length="max_output_tokens"),
    TextRoute("/api/chat", length="num_predict", options="options"),
    TextRoute("/api/generate", prompt="prompt", length="num_predict", options="options"),
)


def said_in(body: Mapping[str, Any]) -> Said:
    """Of a whole answer."""
    if "choices" in body:
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Said(text, choice["finish_reason"])
    if "output" in body:
        parts = [part for item in body["output"] for part in item["content"]]
        return Said("".join(part["text"] for part in parts), _responses_reason(body))
    if "content" in body:
        return Said("".join(block["text"] for block in body["content"]), _reason(body["stop_reason"]))
    return Said(_ollama_text(body), body["done_reason"])


def said_in_stream(content: str) -> Said:
    """Of its events or lines; exactly one of them says why it ended."""
    text, reasons = "", []
    for line in content.split("\n"):
        if not line or line.startswith("event: ") or line == "data: [DONE]":
            continue
        event = json.loads(line.removeprefix("data: "))
        assert not event.get("error"), event
        if "choices" in event:
            for choice in event["choices"]:
                text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                reasons.append(choice["finish_reason"])
        elif "done" in event:
            text += _ollama_text(event)
            reasons.append(event.get("done_reason"))
        elif event["type"] == "response.output_text.delta":
            text += event["delta"]
        elif event["type"] in ("response.completed", "response.incomplete"):
            reasons.append(_responses_reason(event["response"]))
        elif event["type"] == "content_block_delta":
            text += event["delta"]["text"]
        elif event["type"] == "message_delta":
            reasons.append(_reason(event["delta"]["stop_reason"]))
    given = [reason for reason in reasons if reason is not None]
    assert len(given) == 1, reasons
    return Said(text, given[0])


def _ollama_text(body: Mapping[str, Any]) -> str:
    text: str = body["message"]["content"] if "message" in body else body["response"]
    return text


def _responses_reason(body: Mapping[str, Any]) -> str:
    return "stop" if body["status"] == "completed" else _REASONS[body["incomplete_details"]["reason"]]


def _reason(word: str | None) -> str | None:
    return None if word is None else _REASONS[word]
