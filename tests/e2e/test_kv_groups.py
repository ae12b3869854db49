"""A model with sliding and full layers behind a real server: many clients at once get what each would get alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from support.hf_folder import served_golden
from support.server_process import serving, until

POOL = ("--max-num-batched-tokens", "64", "--max-num-seqs", "12", "--threads", "2")


def bodies() -> list[dict[str, Any]]:
    """Most begin alike, over several windows of 24 tokens; every third asks for two samples."""
    rng = np.random.default_rng(3)
    shared = rng.integers(3, 260, 60).tolist()
    common = {"model": "m", "max_tokens": 40, "ignore_eos": True, "logprobs": 1}
    sampled = {"temperature": 0.9, "seed": 4, "n": 2}
    return [
        common
        | {"prompt": [*(shared if number % 4 else []), *rng.integers(3, 260, 5 + 9 * number).tolist()]}
        | (sampled if number % 3 == 0 else {"temperature": 0})
        for number in range(9)
    ]


def answer(url: str, body: dict[str, Any]) -> Any:
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=120)
    response.raise_for_status()
    return [(choice["index"], choice["text"], choice["logprobs"]) for choice in response.json()["choices"]]


def test_clients_at_once_get_what_each_gets_alone(tmp_path: Path) -> None:
    folder = str(served_golden("qwen2-half-sliding", tmp_path / "model"))
    served = ("--served-model-name", "m", *POOL)
    with serving(folder, tmp_path / "alone.log", served) as server:
        expected = [answer(server.url, body) for body in bodies()]
        assert "warning" not in server.output
    tight = (*served, "--num-gpu-blocks-override", "34")
    with serving(folder, tmp_path / "crowd.log", tight) as server, ThreadPoolExecutor(9) as clients:
        for _ in range(2):
            found = list(clients.map(lambda body: answer(server.url, body), bodies()))
            assert found == expected
        greedy = [number for number, body in enumerate(bodies()) if body["temperature"] == 0]
        prompts = [bodies()[number]["prompt"] for number in greedy]
        together = answer(server.url, bodies()[greedy[0]] | {"prompt": prompts})  # these surely meet
        assert [(text, logprobs) for _, text, logprobs in together] == [
            (text, logprobs) for number in greedy for _, text, logprobs in expected[number]
        ]
        metrics = server.metrics()
        assert metrics["vllm:num_preemptions_total"] > 0
        assert metrics["vllm:prefix_cache_hits_total"] > 0
        until("idleness", server.is_idle)
        assert server.metrics()["octavo:kv_block_leak_total"] == 0
