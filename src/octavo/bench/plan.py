"""From the options of a benchmark to the requests it will make: lengths, prompts, times, all from one seed.

    random     --input-len and --output-len, each uniform within +- --random-range-ratio
    sharegpt   log-normal lengths with the means of the PagedAttention paper's ShareGPT workload
    lengths    pairs drawn from a file
    texts      prompts of a JSONL file in shuffled order, answers of --output-len
    trace      times, lengths and shared blocks of a file, in its order

Two runs with equal options make equal requests, whoever serves them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.bench.arrivals import gamma_arrivals
from octavo.bench.traces import read_lengths, read_texts, read_trace
from octavo.bench.workload import (
    Lengths,
    PlannedRequest,
    Prompt,
    RandomPrompts,
    drawn_lengths,
    scaled,
    sharegpt_lengths,
)
from octavo.errors import ConfigError

Dataset = Literal["random", "sharegpt", "lengths", "texts", "trace"]
NEED_FILE: Mapping[str, str] = {
    "lengths": "columns prompt_tokens and output_tokens",
    "texts": "a JSON object with a prompt a line",
    "trace": "a row a request, with its time and lengths",
}
TRACE_BLOCK_TOKENS = 512  # of the published traces with hash_ids


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Bounds are the command's."""

    dataset: Dataset = "random"
    dataset_path: Path | None = None
    num_prompts: int = 100
    input_len: int = 128
    output_len: int = 64
    range_ratio: float = 0.0
    shared_prefix_len: int = 0
    length_scale: float = 1.0
    max_total_tokens: int | None = None  # of a prompt and its answer: longer prompts are cut
    request_rate: float | None = None  # None: all at once, or as the trace says
    burstiness: float = 1.0
    time_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        wanted = NEED_FILE.get(self.dataset)
        if wanted is not None and self.dataset_path is None:
            raise ConfigError(f"--dataset-name {self.dataset} needs --dataset-path with {wanted}")
        if wanted is None and self.dataset_path is not None:
            raise ConfigError(
                f"--dataset-name {self.dataset} reads no file; leave --dataset-path out, or choose one that does: "
                + ", ".join(NEED_FILE)
            )


def make_plan(options: WorkloadOptions, vocab_size: int | None) -> list[PlannedRequest]:
    """The requests in order of time. Without a vocabulary prompts are texts. Raises ConfigError."""
    prompts = RandomPrompts(options.seed, vocab_size, options.shared_prefix_len)
    if options.dataset == "trace":
        planned = _of_trace(options, prompts)
    elif options.dataset == "texts":
        planned = _of_texts(options, prompts)
    else:
        planned = [_made(prompts, options, pair) for pair in _lengths(options)]
    if options.request_rate is None:
        return planned
    rng = random.Random(f"arrivals {options.seed}")
    offsets = gamma_arrivals(rng, len(planned), options.request_rate, options.burstiness)
    return [
        PlannedRequest(at, each.prompt, each.num_prompt_tokens, each.num_output_tokens)
        for at, each in zip(offsets, planned, strict=True)
    ]


def warmup_plan(options: WorkloadOptions, count: int, vocab_size: int | None) -> list[PlannedRequest]:
    """Requests like --input-len and --output-len say, with prompts that the plan does not have."""
    prompts = RandomPrompts(options.seed + 1_000_003, vocab_size)
    return [_made(prompts, options, (options.input_len, options.output_len)) for _ in range(count)]


def _lengths(options: WorkloadOptions) -> list[Lengths]:
    rng = random.Random(f"lengths {options.seed}")
    if options.dataset == "sharegpt":
        return sharegpt_lengths(rng, options.num_prompts)
    if options.dataset == "lengths":
        assert options.dataset_path is not None
        return rng.choices(read_lengths(options.dataset_path), k=options.num_prompts)
    return drawn_lengths(rng, options.num_prompts, (options.input_len, options.output_len), options.range_ratio)


def _made(prompts: RandomPrompts, options: WorkloadOptions, lengths: Lengths) -> PlannedRequest:
    num_prompt, num_output = scaled(lengths, options.length_scale, options.max_total_tokens, options.shared_prefix_len)
    return _request(0.0, prompts.prompt(num_prompt), num_output)


def _request(at_seconds: float, prompt: Prompt, num_output: int) -> PlannedRequest:
    """How many tokens a text has only its server knows."""
    return PlannedRequest(at_seconds, prompt, None if isinstance(prompt, str) else len(prompt), num_output)


def _of_texts(options: WorkloadOptions, prompts: RandomPrompts) -> list[PlannedRequest]:
    assert options.dataset_path is not None
    texts = read_texts(options.dataset_path)
    random.Random(f"texts {options.seed}").shuffle(texts)
    head = prompts.prompt(0)  # the shared prefix, as a text or as nothing
    if options.shared_prefix_len and not isinstance(head, str):
        raise ConfigError("--dataset-name texts shares a prefix only as text; add --prompt-format text")
    chosen = (texts[i % len(texts)] for i in range(options.num_prompts))
    return [_request(0.0, f"{head} {text}" if head else text, options.output_len) for text in chosen]


def _of_trace(options: WorkloadOptions, prompts: RandomPrompts) -> list[PlannedRequest]:
    assert options.dataset_path is not None
    block_tokens = max(1, round(TRACE_BLOCK_TOKENS * options.length_scale))
    planned = []
    for arrival in read_trace(options.dataset_path, options.num_prompts):
        lengths = (arrival.num_prompt_tokens, arrival.num_output_tokens)
        num_prompt, num_output = scaled(lengths, options.length_scale, options.max_total_tokens)
        prompt = (
            prompts.of_blocks(arrival.blocks, num_prompt, block_tokens)
            if arrival.blocks
            else prompts.prompt(num_prompt)
        )
        planned.append(PlannedRequest(arrival.at_seconds * options.time_scale, prompt, num_prompt, num_output))
    return planned
