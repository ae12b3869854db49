"""An engine process that follows a script, to try the server's handle on it: `python engine_script.py MODE FD`.

It speaks the frames honestly but for what its mode says. After Ready it answers each Add with one delta a sample
("hello", finished) unless the mode does otherwise, and reports every Abort as a Heartbeat whose num_steps grew.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable

from octavo.engine import frames
from octavo.engine.engine_request import EngineRequest
from octavo.engine.info import EngineInfo, EngineStats
from octavo.errors import BadRequest, ConfigError
from octavo.outputs import SequenceDelta

INFO = EngineInfo(
    model="script", path="", architecture="script", executor="script", isa="none", num_threads=1, weight_form="none",
    weight_bytes=0, kv_dtype="none", block_size=16, num_blocks=4, kv_bytes_per_block=1, max_model_len=64,
    context_length=64, max_num_seqs=4, max_num_batched_tokens=64, vocab_size=260, enable_prefix_caching=True,
)  # fmt: skip


def main() -> None:
    mode, sock = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    channel = frames.EngineChannel(sock)
    start = wait_for(channel)[0]
    assert isinstance(start, frames.Start)
    if mode == "garbage at start":
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 10)
    elif mode == "config error":
        channel.send(frames.Failed(frames.WireError.of(ConfigError("no such isa", param="isa"))))
    elif mode == "silent death":
        sys.exit(3)
    else:
        if mode == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        channel.send(frames.Progress("packing", 0.5))
        channel.send(frames.Ready(INFO))
        if mode == "slow steps":
            channel.send(frames.Heartbeat(EngineStats(time=0.0, num_steps=1), longest_step_seconds=1000.0))
        serve(mode, sock, channel)
    while not channel.is_closed:
        channel.wait(10.0)
        channel.receive()


def serve(mode: str, sock: socket.socket, channel: frames.EngineChannel) -> None:
    num_aborts = 0
    answers: dict[str, Callable[[EngineRequest], None]] = {
        "garbage": lambda request: sock.sendall(b"\xff" * 64),
        "unknown kind": lambda request: sock.sendall(b"\x0b\x00\x00\x00\x81\xa4type\xa4evil"),
        "torn frame": lambda request: (sock.sendall(b"\x40\x00\x00\x00abc"), sys.exit(0))[0],
        "fatal": lambda request: (channel.send(frames.Fatal("the kernel broke")), sys.exit(1))[0],
        "reject": lambda request: channel.send(
            frames.Rejected(request.request_id, frames.WireError.of(BadRequest("too long", param="prompt")))
        ),
        "flood": lambda request: flood(channel, request),
        "hang": lambda request: None,
        "one behind": lambda request: one_behind(channel, begun, request),
    }
    begun: list[EngineRequest] = []
    while not channel.is_closed:
        for message in wait_for(channel):
            if isinstance(message, frames.Abort):
                num_aborts += 1
                channel.send(frames.Heartbeat(EngineStats(time=0.0, num_steps=num_aborts)))
            elif isinstance(message, frames.Add):
                answers.get(mode, lambda request: hello(channel, request))(message.request)


def hello(channel: frames.EngineChannel, request: EngineRequest) -> None:
    stranger = SequenceDelta("nobody asked", 0, "x", (1,))
    deltas = [
        SequenceDelta(request.request_id, index, "hello", (1,), finish_reason="stop")
        for index in range(request.sampling.n)
    ]
    channel.send(frames.StepDone((stranger, *deltas)))


def flood(channel: frames.EngineChannel, request: EngineRequest) -> None:
    """One delta, and for the request whose client_id is "slow" far more than may wait unread."""
    for _ in range(2000 if request.client_id == "slow" else 0):
        channel.send(frames.StepDone((SequenceDelta(request.request_id, 0, "x" * 100, (1,)),)))
    if request.client_id != "slow":
        hello(channel, request)
    while channel.is_congested:
        channel.wait(1.0)


def one_behind(channel: frames.EngineChannel, begun: list[EngineRequest], request: EngineRequest) -> None:
    """The first half of this request's answer, after the second half of the one before it."""
    ended = [SequenceDelta(each.request_id, 0, "lo", (2,), finish_reason="stop") for each in begun]
    channel.send(frames.StepDone((*ended, SequenceDelta(request.request_id, 0, "hel", (1,)))))
    begun[:] = [request]


def wait_for(channel: frames.EngineChannel) -> list[frames.ToEngine]:
    while not channel.is_closed:
        messages = channel.receive()
        if messages:
            return messages
        channel.wait(10.0)
    return []


if __name__ == "__main__":
    main()
