"""Workloads that put an engine under a known load and time it: shared by `octavo bench` and benchmarks/.

Each workload has a fixed seed, so that a repetition repeats the work and another machine does the same work; prompts
differ from repetition to repetition, so that no prefix is found in the cache. Times are wall-clock seconds of the
whole step, the scheduler's part included. Refuses to judge: whoever prints compares.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.bench.machine import ReadBandwidth
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.engine.step_times import STEP_PARTS
from octavo.sampling_params import SamplingParams

QUIET_SHARE = 0.6  # below it the table says that the process did not get its cores
NAME_COLUMNS = 34  # so that tables printed one after the other stand under each other


@dataclass(frozen=True, slots=True)
class Load:
    """`num_streams` requests at once, `num_prompt_tokens` in, `num_new_tokens` out, greedy, EOS ignored."""

    num_streams: int
    num_prompt_tokens: int
    num_new_tokens: int

    @property
    def max_model_len(self) -> int:
        return self.num_prompt_tokens + self.num_new_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    """One repetition. Prefill ends with the step that draws the last stream's first token."""

    prefill_seconds: float
    decode_seconds: float
    num_prompt_tokens: int  # of all streams
    num_decoded_tokens: int  # drawn after the prefill
    num_decode_steps: int
    overhead_seconds: float  # of the decode steps, outside the model
    part_seconds: dict[str, float]  # of the decode steps, by `step_times.STEP_PARTS`
    cpu_seconds: float  # that this process got during the decode steps, over all its threads


@dataclass(slots=True)
class Figure:
    """One measured quantity over its repetitions."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)  # what stands beside it: bandwidth, fractions

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def to_json(self) -> dict[str, object]:
        rounded = [round(value, 4) for value in self.values]
        notes = {name: round(value, 4) for name, value in self.notes.items()}
        return {"unit": self.unit, "median": round(self.median, 4), "values": rounded, **notes}


def run_load(engine: Engine, load: Load, seed: int) -> Timing:
    """Submits the load and steps the engine until it is done."""
    for prompt in load_prompts(load, engine.info.vocab_size, seed):
        engine.add_request(EngineRequest(new_request_id(), prompt, _sampling(load.num_new_tokens)))
    first_token_of: set[str] = set()
    num_decoded, num_steps = 0, 0
    start = time.perf_counter()
    prefilled, before, cpu = start, engine.stats(), time.process_time()
    while engine.has_unfinished:
        deltas = engine.step()
        if len(first_token_of) < load.num_streams:
            first_token_of |= {delta.request_id for delta in deltas if delta.token_ids}
            prefilled, before, cpu = time.perf_counter(), engine.stats(), time.process_time()
        else:
            num_decoded += sum(len(delta.token_ids) for delta in deltas)
            num_steps += 1
    end, after = time.perf_counter(), engine.stats()
    parts = {part: after.step_part_seconds[part] - before.step_part_seconds[part] for part in STEP_PARTS}
    return Timing(
        prefill_seconds=prefilled - start,
        decode_seconds=end - prefilled,
        num_prompt_tokens=load.num_streams * load.num_prompt_tokens,
        num_decoded_tokens=num_decoded,
        num_decode_steps=num_steps,
        overhead_seconds=max(0.0, end - prefilled - parts["execute"]),
        part_seconds=parts,
        cpu_seconds=time.process_time() - cpu,
    )


def measure_decode(engine: Engine, load: Load, repeats: int, bandwidth: ReadBandwidth) -> tuple[Figure, Figure]:
    """(tokens a second of all streams together, microseconds of a step outside the model).

    Notes of the second: its share of the step, and the microseconds of each part. Of the first: the memory's read
    bandwidth around the repetitions, the bytes a step must read (every weight once, the keys and values of every
    stream), the share of the bandwidth that this is, and the share of its threads' time this process was given: far
    below 1, something else ran.
    """
    name = f"decode, {load.num_streams} stream{'s' if load.num_streams > 1 else ''}"
    rate, overhead = Figure(name, "tokens/s"), Figure(f"engine outside the kernels, {load.num_streams}", "µs/step")
    shares, reads, cpu_shares, steps = [], [], [], []
    run_load(engine, load, seed=0)
    for repeat in range(repeats):
        before = bandwidth.measure()
        timing = run_load(engine, load, seed=1 + repeat)
        around = (before + bandwidth.measure()) / 2
        rate.values.append(timing.num_decoded_tokens / timing.decode_seconds)
        overhead.values.append(1e6 * timing.overhead_seconds / timing.num_decode_steps)
        reads.append(around)
        steps.append(timing)
        cpu_shares.append(timing.cpu_seconds / (timing.decode_seconds * engine.info.num_threads))
        shares.append(step_bytes(engine, load) * timing.num_decode_steps / timing.decode_seconds / around)
    rate.notes = {
        "read_bandwidth_gb_s": statistics.median(reads) / 1e9,
        "step_bytes": step_bytes(engine, load),
        "share_of_bandwidth": statistics.median(shares),
        "share_of_cores": statistics.median(cpu_shares),
    }
    overhead.notes = {"share_of_step": statistics.median(t.overhead_seconds / t.decode_seconds for t in steps)} | {
        f"{part}_us": 1e6 * statistics.median(t.part_seconds[part] / t.num_decode_steps for t in steps)
        for part in STEP_PARTS
    }
    return rate, overhead


def measure_prefill(engine: Engine, num_prompt_tokens: int, repeats: int) -> Figure:
    """Prompt tokens a second, one request, until its first token is there."""
    load = Load(1, num_prompt_tokens, 1)
    figure = Figure(f"prefill, {num_prompt_tokens:,} tokens", "tokens/s")
    run_load(engine, load, seed=0)
    for repeat in range(repeats):
        timing = run_load(engine, load, seed=101 + repeat)
        figure.values.append(timing.num_prompt_tokens / timing.prefill_seconds)
    return figure


def step_bytes(engine: Engine, load: Load) -> float:
    """Bytes a decode step cannot avoid reading: each weight once, and the KV of each stream at its mean length."""
    info = engine.info
    mean_tokens = load.num_prompt_tokens + load.num_new_tokens / 2
    return info.weight_bytes + load.num_streams * mean_tokens * info.kv_bytes_per_block / info.block_size


def load_prompts(load: Load, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    """Random tokens; the first tenth of the vocabulary is left out, where families keep their special tokens."""
    draw = random.Random(f"{seed}/{load}")
    low = vocab_size // 10
    return [
        tuple(draw.randrange(low, vocab_size) for _ in range(load.num_prompt_tokens)) for _ in range(load.num_streams)
    ]


def _sampling(num_new_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num_new_tokens, ignore_eos=True)


def table(figures: Sequence[Figure]) -> list[str]:
    """Lines for people: name, median, spread, and shares of the memory's bandwidth and of a step where measured."""
    width = max(NAME_COLUMNS, *(len(figure.name) for figure in figures))
    lines = []
    for figure in figures:
        line = f"{figure.name:<{width}}  {_number(figure.median):>9} {figure.unit:<9}"
        line += f"  {_number(min(figure.values))} .. {_number(max(figure.values))}"
        if figure.notes.get("share_of_bandwidth", 0.0) >= 0.005:
            line += f"   {figure.notes['share_of_bandwidth']:.0%} of {figure.notes['read_bandwidth_gb_s']:.1f} GB/s"
        if "share_of_step" in figure.notes:
            line += f"   {figure.notes['share_of_step']:.1%} of a step"
        if figure.notes.get("share_of_cores", 1.0) < QUIET_SHARE:
            line += f"   (had {figure.notes['share_of_cores']:.0%} of its cores)"
        lines.append(line.rstrip())
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 1 else f"{value:.3f}"
