"""A real server process that shares itself fairly, cuts prompts by the cost of steps, and ends who is late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from support.server_process import ServerProcess, serving, until

KEYS = ("key-of-the-crowd", "key-of-the-newcomer")
FAIR = ("--scheduling-policy", "fair", "--preemption-policy", "least-recompute", "--target-itl-ms", "20")
ROWS = ("--max-num-seqs", "3", "--queue-timeout-seconds", "0")


def ask(server: ServerProcess, key: str, **fields: Any) -> httpx.Response:
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True} | fields
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=120)


def test_a_newcomer_is_not_behind_another_keys_queue_and_answers_stay_the_same(tmp_path: Path) -> None:
    keys = [word for key in KEYS for word in ("--api-key", key)]
    with serving("fake", tmp_path / "log", (*FAIR, *ROWS, *keys)) as server:
        alone = ask(server, KEYS[1], prompt="a question", max_tokens=30).json()["choices"][0]["text"]
        finished: list[str] = []

        def crowd(number: int) -> None:
            assert ask(server, KEYS[0], prompt=f"{number} of many", max_tokens=1500).status_code == 200
            finished.append("crowd")

        with ThreadPoolExecutor(12) as threads:
            calls = [threads.submit(crowd, number) for number in range(12)]
            server.headers = {"Authorization": f"Bearer {KEYS[0]}"}
            until("a full house", lambda: server.metrics()["vllm:num_requests_running"] == 3)
            answer = ask(server, KEYS[1], prompt="a question", max_tokens=30)
            finished.append("newcomer")
            for call in calls:
                call.result()
        assert answer.json()["choices"][0]["text"] == alone
        assert finished.index("newcomer") < 9, "it waited for rows to come free"
        shown = httpx.get(
            f"{server.url}/debug/requests/{answer.json()['id']}",
            headers={"Authorization": f"Bearer {KEYS[1]}"},
            timeout=60,
        ).json()
        [request] = shown["requests"]
        assert request["client"].startswith("key-")
        assert KEYS[1] not in str(shown)


def test_a_request_without_end_is_ended_by_its_time_alone(tmp_path: Path) -> None:
    options = ("--request-timeout-seconds", "0.2", "--max-model-len", "200000")
    with serving("fake", tmp_path / "log", options) as server:
        response = ask(server, "any", max_tokens=190000)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "timeout"
        assert int(response.headers["retry-after"]) >= 1
        assert ask(server, "any", max_tokens=3).status_code == 200
