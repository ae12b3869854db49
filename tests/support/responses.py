"""What a client of /v1/responses does: ask, read the events, and make a response of them, checking both on the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import httpx
from openai.types.responses import Response as ClientResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from octavo.server.responses_api.shapes import ResponseBody
from support.http_site import Site

PATH = "/v1/responses"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "of a town",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
_CLOSING = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


@cache
def _events() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseStreamEvent)


async def ask(here: Site, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"input": "hello", "max_output_tokens": 8, "temperature": 0} | fields
    return await here.client.post(PATH, json=body, headers=headers or {})


async def answer(here: Site, **fields: Any) -> dict[str, Any]:
    """The response, whole, in our own shape and in the openai client's."""
    got = await ask(here, **fields)
    assert got.status_code == 200, got.text
    return checked(got.json())


def checked(response: dict[str, Any]) -> dict[str, Any]:
    ResponseBody.model_validate(response)
    ClientResponse.model_validate(response)
    return response


def named_events(got: httpx.Response) -> list[dict[str, Any]]:
    """The stream's events, after checking the framing, the numbers, and that the openai client knows each of them."""
    assert got.status_code == 200, got.text
    assert got.headers["content-type"].startswith("text/event-stream")
    assert got.text.endswith("\n\n")
    found: list[dict[str, Any]] = []
    for number, each in enumerate(got.text[:-2].split("\n\n")):
        name, data = each.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        _events().validate_python(event)
        found.append(event)
    return found


def joined(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The response at the end, after checking that the events before it tell the same items, in order and one by one."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    for event in events[:2]:
        assert event["response"]["status"] == "in_progress"
        assert event["response"]["output"] == []
        assert event["response"]["usage"] is None
    last = events[-1]
    assert last["type"] in ("response.completed", "response.incomplete", "response.failed")
    items: list[dict[str, Any]] = []
    is_open = False
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert not is_open
            assert event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            items.append({**event["item"], "joined": "", "logprobs": []})
            is_open = True
            continue
        assert is_open
        assert event["output_index"] == len(items) - 1
        item = items[-1]
        if kind == "output_item.done":
            is_open = False
            made = dict(event["item"])
            text = made["arguments"] if made["type"] == "function_call" else made["content"][0]["text"]
            assert text == item["joined"]
            assert made["id"] == item["id"]
            items[-1] = made
            continue
        assert event["item_id"] == item["id"]
        if kind.endswith(".delta"):
            assert kind == f"{_CLOSING[item['type']]}.delta"
            assert event["delta"]
            item["joined"] += event["delta"]
            item["logprobs"] += event.get("logprobs", [])
        elif kind == "content_part.added":
            assert event["part"]["text"] == ""
        elif kind == "content_part.done":
            assert event["part"]["text"] == item["joined"]
        else:
            assert kind == f"{_CLOSING[item['type']]}.done"
            assert event.get("text", event.get("arguments")) == item["joined"]
            assert event.get("logprobs", item["logprobs"]) == item["logprobs"]
    response = checked(last["response"])
    assert last["type"] == f"response.{response['status']}"
    if response["status"] != "failed":
        assert not is_open
        assert response["output"] == items
    return response


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """What two answers to the same question share."""
    changing = ("id", "call_id", "created_at", "completed_at")
    output = [{name: value for name, value in item.items() if name not in changing} for item in response["output"]]
    return {name: value for name, value in response.items() if name not in changing} | {"output": output}
