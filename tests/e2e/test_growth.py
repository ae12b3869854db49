"""Ten thousand requests of every kind to one server: memory, files and threads stand still, and the canary sings on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.anonymous_memory import anonymous_bytes
from support.server_process import ServerProcess, serving, until

NUM_REQUESTS, BASE, BATCH = 10_000, 2_000, 500  # by BASE every cache is full: of 128 forms, of 150 kB each
MOST_GROWTH = 16 * 2**20  # bytes of all processes together, from BASE to NUM_REQUESTS
CLIENTS = 24
OPTIONS = ("--max-num-seqs", "8", "--max-model-len", "512", "--num-gpu-blocks-override", "100")
CANARY = {"prompt": "the canary sings", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


class Crowd:
    """Draws requests from one seed: what it asks is the same in every run, when it comes is not."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._rng = random.Random(18_106)
        self.counts: dict[str, int] = {}

    async def ask(self, number: int) -> None:
        kinds = {
            self.chat: 35,
            self.leave: 15,
            self.form: 6,
            self.tool: 6,
            self.invalid: 10,
            self.samples: 10,
            self.logprobs: 5,
            self.long: 8,
            self.slow: 5,
        }
        [kind] = self._rng.choices(list(kinds), list(kinds.values()))
        self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
        await kind(number)

    async def chat(self, number: int) -> None:
        await self._post("chat/completions", messages=_says(f"request {number}"), max_tokens=8, stream=number % 2 == 0)

    async def leave(self, number: int) -> None:
        body = {"prompt": f"gone {number}", "max_tokens": 400, "ignore_eos": True, "stream": number % 2 == 0}
        with contextlib.suppress(httpx.TimeoutException):
            async with self._client.stream("POST", "completions", json=body, timeout=0.05) as response:
                async for _ in response.aiter_bytes():
                    return

    async def form(self, number: int) -> None:
        """A schema nobody sent before."""
        schema = {"type": "object", "properties": {f"p{number}": {"type": "boolean"}}, "required": [f"p{number}"]}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        await self._post("chat/completions", messages=_says("form"), response_format=form, max_tokens=30)

    async def tool(self, number: int) -> None:
        function = {
            "name": f"tool_{number}",
            "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}},
        }
        tools = [{"type": "function", "function": function}]
        choice: Any = "required" if number % 2 else "auto"
        await self._post("chat/completions", messages=_says("t"), tools=tools, tool_choice=choice, max_tokens=30)

    async def invalid(self, number: int) -> None:
        wrong: list[dict[str, Any]] = [
            {"temperature": -1},
            {"prompt": "x" * 600},
            {"prompt": [5, 999]},
            {"guided_regex": f"({number}"},
            {"model": f"other {number}"},
            {f"unknown_{number}": 1, "n": 0},
        ]
        body = {"prompt": "x", "max_tokens": 2} | wrong[number % len(wrong)]
        response = await self._client.post("completions", json=body)
        assert 400 <= response.status_code < 500, response.text

    async def samples(self, number: int) -> None:
        await self._post("completions", prompt=[f"s {number}", "t"], n=3, max_tokens=8, stream=number % 2 == 0)

    async def logprobs(self, number: int) -> None:
        await self._post("completions", prompt=f"l {number}", logprobs=5, echo=True, max_tokens=8)

    async def long(self, number: int) -> None:
        await self._post("completions", prompt=f"long {number} " * 20, max_tokens=200, ignore_eos=True)

    async def slow(self, number: int) -> None:
        """Reads nothing for as long as another request takes."""
        body = {"prompt": f"slow {number}", "max_tokens": 100, "logprobs": 5, "stream": True}
        async with self._client.stream("POST", "completions", json=body) as response:
            assert response.status_code == 200
            await self.long(number)

    async def _post(self, path: str, **body: Any) -> None:
        response = await self._client.post(path, json=body)
        assert response.status_code == 200, response.text
        assert '"error"' not in response.text


def _says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Held:
    """What a server and its children hold between two crowds."""

    def __init__(self, server: ServerProcess) -> None:
        processes = [psutil.Process(server.process.pid), *server.descendants()]
        self.bytes_of = {process.pid: anonymous_bytes(process.pid) for process in processes}
        self.num_files = sum(process.num_fds() for process in processes)
        self.num_threads = sum(process.num_threads() for process in processes)
        self.pids = (server.process.pid, server.engine().pid)

    @property
    def bytes(self) -> int:
        return sum(self.bytes_of.values())


@pytest.mark.long
def test_from_the_two_thousandth_request_to_the_ten_thousandth_nothing_grows(tmp_path: Path) -> None:
    """ollama#18106, llama.cpp#27725, lmdeploy#1334, llm-scaler#99."""
    with serving("fake", tmp_path / "log", OPTIONS) as server:

        async def run_some(crowd: Crowd, numbers: range) -> None:
            places = asyncio.Semaphore(CLIENTS)

            async def one(number: int) -> None:
                async with places:
                    await crowd.ask(number)

            async with asyncio.TaskGroup() as group:
                for number in numbers:
                    group.create_task(one(number))

        async def go() -> None:
            limits = httpx.Limits(max_connections=2 * CLIENTS)
            async with httpx.AsyncClient(base_url=f"{server.url}/v1/", limits=limits, timeout=60) as client:
                crowd = Crowd(client)
                song = (await client.post("completions", json=CANARY)).json()["choices"]
                base: Held | None = None
                for begin in range(0, NUM_REQUESTS, BATCH):
                    await run_some(crowd, range(begin, begin + BATCH))
                    await asyncio.to_thread(until, "an idle server", server.is_idle)
                    assert (await client.post("completions", json=CANARY)).json()["choices"] == song
                    held = Held(server)
                    print(begin + BATCH, {pid: f"{size / 2**20:.1f} MiB" for pid, size in held.bytes_of.items()})
                    if begin + BATCH == BASE:
                        base = held
                assert base is not None
                assert held.pids == base.pids
                assert held.bytes - base.bytes <= MOST_GROWTH
                assert abs(held.num_files - base.num_files) <= CLIENTS
                assert held.num_threads <= base.num_threads + 2
                print(crowd.counts)
                assert min(crowd.counts.values()) > NUM_REQUESTS / 40

        asyncio.run(go())
        found = server.metrics()
        assert found["octavo:num_free_blocks"] + found["octavo:num_cached_blocks"] == found["octavo:num_total_blocks"]
        assert found["octavo:kv_block_leak_total"] == 0
        assert found["vllm:num_preemptions_total"] > 10
        assert found["vllm:request_success_total"] > NUM_REQUESTS / 2
        assert "Traceback" not in server.output
