"""Measures a server over HTTP: any that speaks OpenAI's completions or chat completions.

Asks which model it serves, warms it up (a refusal there ends the benchmark at once, in the server's words), sends the
plan, and reports. Everything that is sent is encoded before the first request is due.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.bench.http_client import ConnectionBroke, HttpClient
from octavo.bench.load import LoadOptions, Progress, run_load
from octavo.bench.openai_stream import Endpoint, Outcome, request_body
from octavo.bench.percentiles import Goodput
from octavo.bench.plan import WorkloadOptions, make_plan, warmup_plan
from octavo.bench.serve_report import ServeReport
from octavo.errors import ConfigError

ASK_SECONDS = 30.0  # for questions that need no model
DEFAULT_VOCAB_SIZE = 20_000  # every common tokenizer has so many


@dataclass(frozen=True, slots=True)
class ServeOptions:
    base_url: str
    workload: WorkloadOptions
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None  # None: the first the server names
    endpoint: Endpoint = "completions"
    prompt_format: Literal["tokens", "text"] | None = None  # None: tokens for completions, text for chat
    vocab_size: int = DEFAULT_VOCAB_SIZE
    max_concurrency: int | None = None
    num_warmups: int = 1
    timeout_seconds: float = 600.0
    ignore_eos: bool = True
    temperature: float = 0.0
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    goodput: Goodput | None = None

    def __post_init__(self) -> None:
        if self.endpoint == "chat" and self.prompt_format == "tokens":
            raise ConfigError("--endpoint chat takes texts only; leave --prompt-format out")

    @property
    def prompt_vocabulary(self) -> int | None:
        """None where prompts are to be texts."""
        is_text = self.prompt_format == "text" or self.endpoint == "chat"
        return None if is_text else self.vocab_size

    def fields(self) -> dict[str, Any]:
        """Of every request's body, beside the prompt. `ignore_eos` is left out where it is off: not every server
        knows it."""
        eos: dict[str, Any] = {"ignore_eos": True} if self.ignore_eos else {}
        return {"temperature": self.temperature, **eos, **self.extra_body}


@dataclass(slots=True)
class ServeResult:
    model: str
    server: dict[str, Any]  # what its /version says; empty where it has none
    start: float
    outcomes: list[Outcome]
    report: ServeReport


def measure_server(options: ServeOptions, show: Progress) -> ServeResult:
    """Raises ConfigError where the server cannot be reached, refuses the warm-up, or names no model."""
    return asyncio.run(_measure(options, show))


async def _measure(options: ServeOptions, show: Progress) -> ServeResult:
    headers = {} if options.api_key is None else {"Authorization": f"Bearer {options.api_key}"}
    show("requests are made", 0.0)
    plan = make_plan(options.workload, options.prompt_vocabulary)
    async with HttpClient(options.base_url, headers) as client:
        server = await _json(client, "/version", options.base_url, may_lack=True)
        model = options.model or await _first_model(client, options.base_url)
        load = LoadOptions(options.endpoint, options.max_concurrency, options.timeout_seconds)
        await _warm_up(client, options, model, show)
        bodies = [request_body(model, options.endpoint, each, options.fields()) for each in plan]
        gc.collect()
        gc.freeze()  # the plan is not looked through while requests are on their way
        try:
            start, outcomes = await run_load(client, bodies, [each.at_seconds for each in plan], load, show)
        finally:
            gc.unfreeze()
    for outcome, each in zip(outcomes, plan, strict=True):
        if outcome.num_prompt_tokens is None:
            outcome.num_prompt_tokens = each.num_prompt_tokens
    return ServeResult(model, server, start, outcomes, ServeReport.of(start, outcomes, options.goodput))


async def _warm_up(client: HttpClient, options: ServeOptions, model: str, show: Progress) -> None:
    """One after the other."""
    planned = warmup_plan(options.workload, options.num_warmups, options.prompt_vocabulary)
    if not planned:
        return
    show("warm-up", 0.0)
    bodies = [request_body(model, options.endpoint, each, options.fields()) for each in planned]
    load = LoadOptions(options.endpoint, 1, options.timeout_seconds)
    _, outcomes = await run_load(client, bodies, [0.0] * len(bodies), load, lambda *_: None)
    failed = next((outcome for outcome in outcomes if outcome.error is not None), None)
    if failed is not None:
        raise ConfigError(
            f"{options.base_url} failed a warm-up request ({failed.error}): "
            f"{failed.error_detail or 'no more is known'}; change what is asked, or leave it out with --num-warmups 0"
        )


async def _first_model(client: HttpClient, base_url: str) -> str:
    found = await _json(client, "/v1/models", base_url)
    models = found.get("data")
    if isinstance(models, list) and models and isinstance(models[0], dict) and isinstance(models[0].get("id"), str):
        name: str = models[0]["id"]
        return name
    raise ConfigError(f"{base_url}/v1/models names no model; name one with --model")


async def _json(client: HttpClient, path: str, base_url: str, *, may_lack: bool = False) -> dict[str, Any]:
    """A JSON object, {} where the server may lack it. Raises ConfigError."""
    try:
        async with asyncio.timeout(ASK_SECONDS), client.request("GET", path) as answer:
            body = await answer.body()
            if answer.status != 200:
                if may_lack:
                    return {}
                key = "; give the server's key with --api-key" if answer.status in (401, 403) else ""
                raise ConfigError(f"{base_url}{path} answered {answer.status}{key}")
    except (ConnectionBroke, TimeoutError) as error:
        words = str(error) or f"no answer within {ASK_SECONDS:g} s"
        raise ConfigError(f"{base_url} is not to be reached: {words}; start the server, or change --base-url")
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}
