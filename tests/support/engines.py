"""Engines over the real core and the fake executor, small enough to be made by the hundred."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.scheduler_output import AddedRow
from octavo.engine.cache_keeper import CacheKeeper, MemorySource
from octavo.engine.engine import Engine, EngineRequest
from octavo.engine.fake_model import fake_logprob_step, fake_next_token
from octavo.engine.info import EngineInfo
from octavo.executors.fake import HIDDEN_SIZE, FakeExecutor
from octavo.loading.fake_tokenizer import FakeTokenizer
from octavo.outputs import SequenceDelta
from octavo.sampling_params import SamplingParams

EOS = 257


class Clock:
    """Every look takes one second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def make_engine(
    *,
    num_blocks: int = 512,
    block_size: int = 4,
    max_model_len: int = 256,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    enable_prefix_caching: bool = True,
    max_queue: int = 512,
    next_token: Callable[[tuple[int, ...], int, int], int] = fake_next_token,
    fail_row: Callable[[AddedRow, tuple[int, ...]], str | None] | None = None,
    tokenizer: FakeTokenizer | None = None,
    seed: int = 0,
    memory: MemorySource | None = None,
    idle_seconds: float = 0.0,
    clock: Callable[[], float] | None = None,
    strict: bool = True,
) -> Engine:
    """`memory`: with a cache keeper that keeps 100 of its bytes available; a block has 12 bytes."""
    tokenizer = tokenizer or FakeTokenizer()
    config = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        max_queue=max_queue,
    )
    executor = FakeExecutor(
        vocab_size=tokenizer.vocab_size,
        num_blocks=num_blocks,
        block_size=block_size,
        next_token=next_token,
        logprob_step=fake_logprob_step,
        fail_row=fail_row,
    )
    info = EngineInfo(
        model="fake", path="", architecture="fake", executor="fake", isa="python", num_threads=1, weight_form="none",
        weight_bytes=0, kv_dtype="tokens", block_size=block_size, num_blocks=num_blocks, kv_bytes_per_block=12,
        max_model_len=max_model_len, context_length=max_model_len, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens, vocab_size=tokenizer.vocab_size,
        enable_prefix_caching=enable_prefix_caching, eos_token_ids=(EOS,), embedding_size=HIDDEN_SIZE,
    )  # fmt: skip
    scheduler = Scheduler(config)
    keeper = None
    if memory is not None:
        keeper = CacheKeeper(scheduler, memory, block_bytes=12, idle_seconds=idle_seconds, reserve_bytes=100)
    return Engine(
        scheduler=scheduler,
        executor=executor,
        tokenizer=tokenizer,
        info=info,
        clock=clock or Clock(),
        rng=random.Random(seed),
        keeper=keeper,
        strict=strict,
    )


def ask(request_id: str, prompt: str | Sequence[int], **sampling: object) -> EngineRequest:
    """Greedy and 16 tokens unless told otherwise."""
    ids = prompt.encode() if isinstance(prompt, str) else prompt
    fields = {"temperature": 0.0, "max_tokens": 16, **sampling}
    return EngineRequest(request_id, tuple(ids), SamplingParams(**fields))  # type: ignore[arg-type]


@dataclass
class Answer:
    """One sample as a client would join it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    deltas: list[SequenceDelta] = field(default_factory=list)


class Answers(dict[tuple[str, int], Answer]):
    """By (request id, sample). Refuses a delta after a sample's end."""

    def take(self, deltas: Iterable[SequenceDelta]) -> None:
        for delta in deltas:
            answer = self.setdefault((delta.request_id, delta.index), Answer())
            assert answer.finish_reason is None, f"{delta} comes after the end"
            answer.text += delta.text
            answer.token_ids += delta.token_ids
            answer.finish_reason, answer.stop_reason, answer.error = delta.finish_reason, delta.stop_reason, delta.error
            answer.deltas.append(delta)


def run(engine: Engine, requests: Iterable[EngineRequest]) -> Answers:
    for request in requests:
        engine.add_request(request)
    answers = Answers()
    while engine.has_unfinished:
        answers.take(engine.step())
    assert_drained(engine)
    return answers


def assert_drained(engine: Engine) -> None:
    """Nothing runs, nothing is held, and the accounts are right."""
    engine.scheduler.check_integrity()
    stats = engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_blocks_used) == (0, 0, 0)
    assert stats.num_blocks_free + stats.num_blocks_cached == stats.num_blocks_total
