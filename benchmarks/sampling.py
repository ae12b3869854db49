"""Question: what does drawing tokens cost, and which share of a step of 64 rows is that?

    python benchmarks/sampling.py [--model PATH] [--repeats 100] [--check]

Microseconds a row, one thread, for vocabularies of 49,152 and 151,936, from logits like a bell: greedy, temperature
alone, then with each filter, and with all of them and penalties over 300 tokens. With a model, 64 greedy streams of it
run first, and the dearest way to draw is told as a share of their step: 64 rows over the engine's threads. Fixed seeds,
medians with their spread, one JSON line last.

The limits, 2% with 49,152 tokens and 5% with 151,936, are for a model of 1B parameters on 2 cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np

from bounds import Bounds, finish, show
from octavo import _native
from octavo.bench.machine import describe_machine, machine_line
from octavo.bench.measure import Figure, Load, run_load
from octavo.config import EngineConfig, forced_isa
from octavo.engine.build import build_engine

NUM_ROWS = 64
VOCABULARIES = (49_152, 151_936)
LIMITS: Bounds = {"share of a step, 49,152 tokens": (None, 2.0), "share of a step, 151,936 tokens": (None, 5.0)}
HISTORY = list(range(0, 30_000, 100))
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 50": {"top_k": 50},
    "min-p 0.05": {"min_p": 0.05},
    "all, penalties": {
        "top_k": 200, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "frequency_penalty": 0.1,
        "prompt": HISTORY, "output": HISTORY[:100],
    },
}  # fmt: skip


def measure_rows(isa: str, vocab_size: int, repeats: int) -> list[Figure]:
    sampler = _native.Sampler(isa, vocab_size)
    logits = np.random.default_rng(vocab_size).standard_normal(vocab_size).astype(np.float32)
    figures = []
    for name, way in WAYS.items():
        figure = Figure(f"{name}, {vocab_size:,} tokens", "µs/row")
        for seed in range(repeats + 1):
            began = time.perf_counter()
            sampler.sample(logits, seed=seed, **way)
            figure.values.append(1e6 * (time.perf_counter() - began))
        del figure.values[0]  # the first fills the caches
        figures.append(figure)
    return figures


def measure_step(options: argparse.Namespace) -> tuple[float, int]:
    """(milliseconds inside the model of a step with NUM_ROWS streams, threads)."""
    load = Load(NUM_ROWS, 16, 8)
    config = EngineConfig(
        model=options.model, max_model_len=load.max_model_len, max_num_seqs=NUM_ROWS, num_threads=options.threads
    )
    engine = build_engine(config)
    try:
        run_load(engine, load, seed=0)
        timing = run_load(engine, load, seed=1)
        seconds = timing.decode_seconds - timing.overhead_seconds
        return 1e3 * seconds / timing.num_decode_steps, engine.info.num_threads
    finally:
        engine.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="tell shares of its steps; without one there are no limits")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa", help="of the rows; the model takes the best one")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--check", action="store_true", help="exit code 1 when a limit is missed")
    options = parser.parse_args()
    machine = describe_machine()
    print(machine_line(machine), flush=True)
    isa = options.isa or forced_isa() or _native.available_isas()[0]
    machine["isa"] = isa
    figures = [figure for size in VOCABULARIES for figure in measure_rows(isa, size, options.repeats)]
    if options.model is not None:
        step, threads = measure_step(options)
        figures.append(Figure(f"step of {NUM_ROWS} rows", "ms", [step]))
        for size in VOCABULARIES:
            dearest = max((f for f in figures if f.name.endswith(f", {size:,} tokens")), key=lambda f: f.median)
            share = dearest.median * NUM_ROWS / threads / (1e3 * step)
            figures.append(Figure(f"share of a step, {size:,} tokens", "%", [100 * share]))
    show(figures, LIMITS)
    return finish("sampling", machine, figures, LIMITS, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
