"""Faults that clients of other servers reported, against a real server process: each test names the report.

The server is made small, so that three clients fill it: four rows, eight tokens a step, blocks for one long sequence
and a little more. What was worked for nobody is counted in tokens run, never in seconds.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.anonymous_memory import anonymous_bytes
from support.server_process import ServerProcess, serving, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ROWS, STEP_TOKENS, BLOCKS, CONTEXT = 4, 8, 130, 2048
OPTIONS = (
    *("--max-num-seqs", str(ROWS), "--max-num-batched-tokens", str(STEP_TOKENS)),
    *("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", str(CONTEXT)),
)
LONG: dict[str, Any] = {"ignore_eos": True, "temperature": 0}
OLDEST: dict[str, Any] = LONG | {"prompt": "the first to come", "max_tokens": 2000}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving("fake", tmp_path_factory.mktemp("server") / "log", OPTIONS) as server:
        yield server


@pytest.fixture
def server(started: ServerProcess) -> Iterator[ServerProcess]:
    """Idle before and after, in the same engine process, with every block back and nothing told of a fault."""
    engine = started.engine().pid
    until("an idle server", started.is_idle)
    yield started
    until("an idle server after the clients left", started.is_idle)
    found = started.metrics()
    assert found["octavo:num_free_blocks"] + found["octavo:num_cached_blocks"] == BLOCKS
    assert found["octavo:kv_block_leak_total"] == 0
    assert started.engine().pid == engine
    assert post(started, COMPLETIONS, prompt="canary", max_tokens=5).json()["usage"]["completion_tokens"] == 5
    assert "Traceback" not in started.output


class Client:
    """One request over a socket of its own, which its user may close at any moment."""

    def __init__(self, server: ServerProcess, path: str, *, receive_bytes: int = 0, **body: Any) -> None:
        """`receive_bytes`: how little the kernel takes of the answer while nobody reads it; 0: as much as it likes."""
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(60)
        self._socket.connect(("127.0.0.1", server.port))
        self.ask(path, **body)

    def ask(self, path: str, **body: Any) -> None:
        """Also while an answer is owed: the request waits behind it."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        self._socket.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)

    def read_some(self, words: bytes) -> bytes:
        """Reads until the answer holds `words`; what was read."""
        text = b""
        while words not in text:
            piece = self._socket.recv(65536)
            assert piece, f"the answer ended without {words!r}: {text!r}"
            text += piece
        return text

    def leave(self) -> None:
        self._socket.close()


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def tokens_run(server: ServerProcess) -> float:
    return server.metrics()["vllm:iteration_tokens_total_sum"]


def running(server: ServerProcess) -> float:
    return server.metrics()["vllm:num_requests_running"]


def waiting(server: ServerProcess) -> float:
    return server.metrics()["vllm:num_requests_waiting"]


# -- disconnect and abort


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_answer_nobody_waits_for_is_generated_no_further(server: ServerProcess, path: str, stream: bool) -> None:
    """llama.cpp#24496: the socket was closed, and generation ran to its end, streamed or not."""
    before = tokens_run(server)
    asked = {"prompt": "hello"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hello"}]}
    clients = [Client(server, path, **LONG, **asked, n=4, max_tokens=1900, stream=stream) for _ in range(3)]
    until("a running request", lambda: tokens_run(server) > before)
    if stream:
        clients[0].read_some(b"data: ")
    for client in clients:
        client.leave()
    until("free blocks", server.is_idle)
    assert tokens_run(server) - before < 3 * 4 * 1900 / 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_asked_for_more_meanwhile_is_missed_as_well(server: ServerProcess, stream: bool) -> None:
    """llama.cpp#24496 again: with requests behind it on one connection, that one was not told that the client left."""
    before = tokens_run(server)
    asked = LONG | {"prompt": "hello", "n": 4, "max_tokens": 1900, "stream": stream}
    clients = [Client(server, COMPLETIONS, **asked) for _ in range(3)]
    until("a running request", lambda: tokens_run(server) > before)
    for client in clients:
        client.ask(COMPLETIONS, **asked)
        client.ask(COMPLETIONS, **asked)
    for client in clients:
        client.leave()
    until("free blocks", server.is_idle)
    assert tokens_run(server) - before < 3 * 4 * 1900 / 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_client_left_the_queue_is_never_run(server: ServerProcess, stream: bool) -> None:
    """llama.cpp#13262: it was run later, for nobody."""
    before = server.metrics()
    prompts = before["vllm:prompt_tokens_total"] + len(OLDEST["prompt"])
    first = Client(server, COMPLETIONS, **OLDEST, n=ROWS, stream=True)
    until("the first one's tokens", lambda: server.metrics()["vllm:prompt_tokens_total"] == prompts)
    gone = [Client(server, COMPLETIONS, **LONG, prompt="x" * 900, max_tokens=9, stream=stream) for _ in range(5)]
    until("the queue", lambda: waiting(server) == 5)
    for client in gone:
        client.leave()
    until("an empty queue", lambda: waiting(server) == 0)
    assert running(server) == 1, "all of it happened while the first one ran"
    first.leave()
    until("free blocks", server.is_idle)
    assert server.metrics()["vllm:prompt_tokens_total"] == prompts, "and of no other"
    assert server.metrics()["vllm:request_success_total"] == before["vllm:request_success_total"] + 6, "all aborts"


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_prefill_ends_between_two_chunks_when_its_client_leaves(server: ServerProcess, stream: bool) -> None:
    """llama.cpp#15232, ninfer#111: the slot was held until the whole prompt was through."""
    before, generated = tokens_run(server), server.metrics()["vllm:generation_tokens_total"]
    prompts = [f"{number:02}" + "long " * 380 for number in range(40)]
    clients = [Client(server, COMPLETIONS, **LONG, prompt=p, max_tokens=9, stream=stream) for p in prompts]
    until("a prefill", lambda: tokens_run(server) > before)
    for client in clients:
        client.leave()
    until("free blocks", server.is_idle)
    assert tokens_run(server) - before < sum(map(len, prompts)) / 2
    assert server.metrics()["vllm:generation_tokens_total"] - generated < 40 * 9


def test_clients_that_leave_as_their_answer_ends_harm_nobody(server: ServerProcess) -> None:
    """vllm PR#25067, LMCache#4185, #3688: the abort of a request that had just finished killed the engine."""
    for length in range(1, 40):
        clients = [Client(server, COMPLETIONS, **LONG, prompt="hi", max_tokens=length, stream=s) for s in (True, False)]
        clients[0].read_some(b"data: ")
        if length % 2:
            clients[1].read_some(b'"usage"')
        for client in clients:
            client.leave()


def test_clients_of_preempted_requests_leave_while_the_pool_is_exhausted(server: ServerProcess) -> None:
    """OVMS#4428: that was a crash in the block manager."""
    preemptions = server.metrics()["vllm:num_preemptions_total"]
    clients = [
        Client(server, COMPLETIONS, **LONG, prompt=f"client {number}", max_tokens=1900, stream=number % 2 == 0)
        for number in range(ROWS)
    ]
    until("a preemption", lambda: server.metrics()["vllm:num_preemptions_total"] > preemptions)
    until("a preempted request in the queue", lambda: waiting(server) > 0)
    for client in reversed(clients):
        client.leave()


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_whose_client_left_can_be_gone_on_with(server: ServerProcess, stream: bool) -> None:
    """sglang#36475: the context was lost, and the accounts were wrong."""
    client = Client(server, COMPLETIONS, **LONG, prompt="left in the middle", max_tokens=1900, stream=stream)
    found: list[dict[str, Any]] = []

    def is_listed() -> bool:
        found[:] = httpx.get(f"{server.url}/v1/requests").json()["data"]
        return bool(found) and found[0]["completion_tokens"] > 0

    until("its first tokens", is_listed)
    client.leave()
    until("free blocks", server.is_idle)
    answer = post(server, "/v1/fork", id=found[0]["id"], num_tokens=1, max_tokens=5, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens"] == len("left in the middle") + 1


# -- never fits, livelock, preemption storm


def test_a_prompt_one_token_over_the_limit_is_refused_and_others_go_on(server: ServerProcess) -> None:
    """vllm#42381: 200, and the server stood still. vllm#39734: a prompt no pool holds blocked the queue for ever."""
    first = Client(server, COMPLETIONS, **OLDEST, stream=True)
    first.read_some(b"data: ")
    for length in (CONTEXT, CONTEXT + 1, 16 * BLOCKS + 1, 20_000):
        for stream in (False, True):
            response = post(server, COMPLETIONS, prompt="x" * length, max_tokens=1, stream=stream)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert str(CONTEXT) in error["message"]
            assert str(length) in error["message"]
    first.read_some(b"data: ")
    first.leave()


def test_the_limit_of_a_chat_counts_what_the_template_adds(server: ServerProcess) -> None:
    def ask(length: int) -> httpx.Response:
        return post(server, CHAT, messages=[{"role": "user", "content": "x" * length}], max_tokens=None)

    added = post(server, "/tokenize", messages=[{"role": "user", "content": "x"}]).json()["count"] - 1
    assert added > 0
    exact = ask(CONTEXT - 1 - added)
    assert exact.status_code == 200, exact.text
    assert exact.json()["usage"]["prompt_tokens"] == CONTEXT - 1
    assert exact.json()["usage"]["completion_tokens"] == 1
    over = ask(CONTEXT - added)
    assert over.status_code == 400
    assert over.json()["error"]["code"] == "context_length_exceeded"


def test_a_prompt_of_two_hundred_steps_is_answered(server: ServerProcess) -> None:
    """vllm#765, vllm-metal#199: above max_num_batched_tokens it waited for ever."""
    response = post(server, COMPLETIONS, prompt="y" * 200 * STEP_TOKENS, max_tokens=3, ignore_eos=True)
    assert response.json()["usage"]["completion_tokens"] == 3


def test_a_pool_smaller_than_the_context_lowers_the_limit_and_says_so(tmp_path: Path) -> None:
    """vllm#39734: the limit was larger than the pool, and what lay between waited for ever."""
    with serving("fake", tmp_path / "log", ("--num-gpu-blocks-override", "20")) as server:
        assert "max_model_len lowered from 2048 to 320" in server.output
        assert post(server, COMPLETIONS, prompt="x" * 320, max_tokens=1).status_code == 400
        exact = post(server, COMPLETIONS, prompt="x" * 319, max_tokens=5)
        assert exact.json()["usage"]["completion_tokens"] == 1


def test_more_samples_than_the_pool_holds_all_end(server: ServerProcess) -> None:
    """vllm-ascend#16315, inference-sim#297: work for far more than the pool, and nothing ends."""
    preemptions = server.metrics()["vllm:num_preemptions_total"]
    clients = [
        Client(server, COMPLETIONS, **LONG, prompt=f"client {number}", max_tokens=1400, n=2) for number in range(3)
    ]
    for client in clients:
        client.read_some(b'"completion_tokens":2800')
        client.leave()
    assert server.metrics()["vllm:num_preemptions_total"] - preemptions <= 3 * 4


# -- cache correctness


def test_a_greedy_prompt_gives_the_same_text_from_the_cache(server: ServerProcess) -> None:
    """vllm#40896, sglang#34683, tenstorrent/vllm#415: cold and warm texts differed."""
    prompt = "A sheet of paper folded into sixteen pages makes an octavo. " * 6
    answers = [post(server, COMPLETIONS, prompt=prompt, max_tokens=40, **LONG).json() for _ in range(3)]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0
    assert cached[1] == cached[2] == len(prompt) // 16 * 16


def test_a_salt_parts_the_cache_and_not_the_text(server: ServerProcess) -> None:
    """vllm#44701, sglang#24638: a salt and an adapter of one name gave one key."""
    prompt = "Salted paper lasts. " * 20
    salts = (None, "x", "x", "y", None)
    answers = [post(server, COMPLETIONS, prompt=prompt, max_tokens=9, **LONG, cache_salt=salt).json() for salt in salts]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    hits = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for answer in answers]
    assert hits == [False, False, True, False, True]


# -- backpressure, queue, shutdown


def test_a_reader_that_stops_reading_is_dropped_and_others_are_unharmed(tmp_path: Path) -> None:
    """opencode PR#19423 (187 GB), OpenCTI#13908: what it did not read was kept for it, without a bound."""
    num_samples, num_tokens = 32, 1000
    options = ("--max-num-seqs", str(num_samples + 4), "--max-model-len", "2048")
    with serving("fake", tmp_path / "log", options) as server:
        canary = LONG | {"prompt": "canary", "max_tokens": 30}
        expected = post(server, COMPLETIONS, **canary).json()["choices"]
        before = server.metrics()
        held = anonymous_bytes(server.process.pid)
        asked = LONG | {"prompt": "slow", "n": num_samples, "max_tokens": num_tokens, "logprobs": 20, "stream": True}
        reader = Client(server, COMPLETIONS, receive_bytes=4096, **asked)
        until("a running request", lambda: running(server) == 1)
        assert post(server, COMPLETIONS, **canary).json()["choices"] == expected
        until("the end of what nobody reads", lambda: running(server) == 0)
        after = server.metrics()
        made = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
        assert made < num_samples * num_tokens / 2
        grown = anonymous_bytes(server.process.pid) - held
        print(f"{made:.0f} tokens were made, and the server holds {grown / 2**20:.1f} MiB more")
        assert grown < 32 * 2**20
        assert b"[DONE]" not in reader.read_some(b"slow_reader")
        reader.leave()
        assert post(server, COMPLETIONS, **canary).json()["choices"] == expected
        until("an idle server", server.is_idle)


def test_one_request_above_the_limit_is_a_429_at_once_and_the_server_is_well(tmp_path: Path) -> None:
    """ollama#7758: the limit was not looked at. TGI#3241: a full queue was told as ill health, and the server killed."""
    options = ("--max-num-seqs", "2", "--max-queue", "2", "--max-model-len", "100000")
    with serving("fake", tmp_path / "log", options) as server:
        long = OLDEST | {"max_tokens": 90_000}
        clients = [Client(server, COMPLETIONS, **long, stream=stream) for stream in (False, True)]
        until("both rows taken", lambda: running(server) == 2)
        clients += [Client(server, COMPLETIONS, **long, stream=stream) for stream in (False, True)]
        until("a full queue", lambda: waiting(server) == 2)
        for stream in (False, True):
            for path, asked in (
                (COMPLETIONS, {"prompt": "x"}),
                (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
            ):
                refused = post(server, path, **asked, max_tokens=1, stream=stream)
                assert refused.status_code == 429
                assert refused.json()["error"]["code"] == "queue_full"
                assert int(refused.headers["retry-after"]) >= 1
        assert (running(server), waiting(server)) == (2, 2)
        assert httpx.get(f"{server.url}/health").status_code == 200
        for client in clients:
            client.leave()
        until("an idle server", server.is_idle)
        assert post(server, COMPLETIONS, prompt="x", max_tokens=1).status_code == 200
