"""Question: what do the prefix cache and the tiers save on this machine, and what do they cost?

    python benchmarks/memory.py [--model smollm2] [--repeats 5] [--quick] [--check]

In process, random prompts of a fixed seed, medians with their spread, one JSON line last:

    sharing    32 requests that arrive together with one prefix of 1,024 tokens and 32 of their own: tokens computed
    cost       the same load with and without prefix caching, nothing to hit: the ratio of their throughputs
    swap       a prompt of 256, 1,024 and 4,096 tokens computed, and brought back from RAM and from disk (the paper's
               Fig 19: swap out + in against recompute); the time to the first token, and what moving it out took
    restart    the engine ended and built again over the same disk tier: the time to the first token against the cold
               one; with the files dropped from the system's cache, where that can be done, so that the disk is read
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bounds import Bounds, finish, model_parser, show
from octavo.bench.machine import describe_machine, machine_line
from octavo.bench.measure import Figure
from octavo.config import EngineConfig, forced_isa
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.engine_request import EngineRequest, new_request_id
from octavo.sampling_params import SamplingParams

NUM_SHARING, NUM_SHARED_TOKENS, NUM_OWN_TOKENS = 32, 1024, 32
SWAP_LENGTHS = (256, 1024, 4096)
RESUME_LENGTH, RESTART_LENGTH = 2048, 4096
TIER_SIZE = "2GiB"
BARS: Bounds = {
    "tokens computed / needed, shared prefix": (None, 1.05),
    "throughput with / without caching": (0.99, None),
    "recompute / resume from disk, 2,048": (5.0, None),
    "first token after restart / cold, 4,096": (None, 0.15),
}


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._draw = random.Random(2023)
        self.scale = 16 if options.quick else 1  # shorter prompts, to see that it runs

    @contextmanager
    def engine(self, **fields: object) -> Iterator[Engine]:
        config = {
            "model": self._options.model,
            "max_model_len": RESTART_LENGTH + 64,
            "num_threads": self._options.threads,
            "isa": self._options.isa or forced_isa(),
            **fields,
        }
        engine = build_engine(EngineConfig.from_options(config))
        try:
            self.first_token(engine, self.prompt(engine, 64))  # warm-up
            yield engine
        finally:
            engine.close()

    def prompt(self, engine: Engine, num_tokens: int) -> tuple[int, ...]:
        low = engine.info.vocab_size // 10
        return tuple(self._draw.randrange(low, engine.info.vocab_size) for _ in range(num_tokens))

    def first_token(self, engine: Engine, prompt: tuple[int, ...]) -> float:
        """Seconds from the request to its first token, alone."""
        return self.run(engine, [prompt], 1)

    @staticmethod
    def run(engine: Engine, prompts: list[tuple[int, ...]], num_new_tokens: int) -> float:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_new_tokens, ignore_eos=True)
        start = time.perf_counter()
        for prompt in prompts:
            engine.add_request(EngineRequest(new_request_id(), prompt, sampling))
        while engine.has_unfinished:
            engine.step()
        return time.perf_counter() - start

    # -- figures -----------------------------------------------------------------------------------------------------

    def sharing(self) -> list[Figure]:
        """Counted, not timed: one repetition says it."""
        num_shared, num_own = NUM_SHARED_TOKENS // self.scale, NUM_OWN_TOKENS
        figure = Figure("tokens computed / needed, shared prefix", "")
        with self.engine(max_num_seqs=NUM_SHARING, max_num_batched_tokens=512) as engine:
            shared = self.prompt(engine, num_shared)
            before = engine.stats().iteration_tokens.total
            self.run(engine, [shared + self.prompt(engine, num_own) for _ in range(NUM_SHARING)], 1)
            computed = engine.stats().iteration_tokens.total - before
        needed = num_shared + NUM_SHARING * num_own
        figure.values = [computed / needed]
        figure.notes = {"computed_tokens": computed, "needed_tokens": needed}
        return [figure]

    def cost(self) -> list[Figure]:
        """Repetitions with and without follow each other, so that a slow minute strikes both."""
        figure = Figure("throughput with / without caching", "")
        num_prompt, num_new = 512 // self.scale, 32
        with (
            self.engine(max_num_seqs=16) as with_cache,
            self.engine(max_num_seqs=16, enable_prefix_caching=False) as without,
        ):
            for repeat in range(2 * self._options.repeats):
                prompts = [self.prompt(without, num_prompt) for _ in range(16)]
                pair = (with_cache, without) if repeat % 2 else (without, with_cache)
                seconds = {engine: self.run(engine, prompts, num_new) for engine in pair}
                figure.values.append(seconds[without] / seconds[with_cache])
            assert with_cache.stats().num_prefix_cache_hits == 0
        return [figure]

    def swap(self) -> list[Figure]:
        figures: list[Figure] = []
        for kind in ("ram", "disk"):
            with tempfile.TemporaryDirectory() as folder:
                spec = f"ram:{TIER_SIZE}" if kind == "ram" else f"disk:{folder}/tier,{TIER_SIZE}"
                with self.engine(kv_tiers=(spec,), kv_tier_policy="swap") as engine:
                    for length in dict.fromkeys((*SWAP_LENGTHS, RESUME_LENGTH)):
                        figures += self._swap_one(engine, kind, length)
        return figures

    def _swap_one(self, engine: Engine, kind: str, length: int) -> list[Figure]:
        name = f"{length:,}"
        recompute, resume = Figure(f"recompute, {name}", "ms"), Figure(f"swap in from {kind}, {name}", "ms")
        out = Figure(f"swap out to {kind}, {name}", "ms")
        ratio = Figure(f"recompute / resume from {kind}, {name}", "x")
        self._swap_times(engine, length)
        for _ in range(self._options.repeats):
            cold, leaving, warm = self._swap_times(engine, length)
            recompute.values.append(1e3 * cold)
            out.values.append(1e3 * leaving)
            resume.values.append(1e3 * warm)
            ratio.values.append(cold / warm)
        return [*([recompute] if kind == "ram" else []), out, resume, ratio]

    def _swap_times(self, engine: Engine, length: int) -> tuple[float, float, float]:
        prompt = self.prompt(engine, max(length // self.scale, 32))
        before = engine.stats().num_swaps
        cold = self.first_token(engine, prompt)
        start = time.perf_counter()
        while engine.scheduler.num_cached_blocks:  # in parts, as they leave a busy engine
            engine.scheduler.drop_cached(64)
            engine.rest()
            engine.flush_tier()
        leaving = time.perf_counter() - start
        warm = self.first_token(engine, prompt)
        assert engine.stats().num_swaps == before + 1, "it was not swapped in"
        return cold, leaving, warm

    def restart(self) -> list[Figure]:
        figure = Figure("first token after restart / cold, 4,096", "")
        from_disk = Figure("the same, files not in the system's cache", "")
        cold_ms, warm_ms = Figure("first token, cold, 4,096", "ms"), Figure("first token after a restart, 4,096", "ms")
        for _ in range(self._options.repeats):
            for is_cached in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    cold, warm = self._restart_times(Path(folder), is_cached)
                if is_cached:
                    cold_ms.values.append(1e3 * cold)
                    warm_ms.values.append(1e3 * warm)
                    figure.values.append(warm / cold)
                else:
                    from_disk.values.append(warm / cold)
        return [cold_ms, warm_ms, figure, from_disk]

    def _restart_times(self, folder: Path, is_cached: bool) -> tuple[float, float]:
        options = {"kv_tiers": (f"disk:{folder}/tier,{TIER_SIZE}",), "max_num_batched_tokens": 512}
        with self.engine(**options) as engine:
            prompt = self.prompt(engine, RESTART_LENGTH // self.scale)
            cold = self.first_token(engine, prompt)
        if not is_cached:
            drop_from_cache(folder)
        with self.engine(**options) as engine:
            warm = self.first_token(engine, prompt)
            assert engine.stats().num_swaps > 0, "it was not found in the tier"
        return cold, warm


def drop_from_cache(folder: Path) -> None:
    """The files' pages leave the system's cache, so that they are read from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> int:
    options = model_parser(__doc__).parse_args()
    options.repeats = 1 if options.quick else options.repeats
    machine = describe_machine()
    print(machine_line(machine), flush=True)
    bench = Bench(options)
    figures: list[Figure] = []
    for measure in (bench.sharing, bench.cost, bench.swap, bench.restart):
        new = measure()
        figures += new
        show(new, BARS)
    return finish("memory", machine, figures, BARS, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
