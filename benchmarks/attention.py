"""Question: how near is attention to the machine's limits, and what does sharing a prefix give?

    python benchmarks/attention.py [--repeats 5] [--isa avx2] [--check] [--quick]

One core, one layer's shape of SmolLM2 (9 query heads over 3 KV heads of 64 dimensions, bf16 KV, blocks of 16), the
native kernel called on arrays:

- prefill of 2,048 tokens: multiplications of the keys each query sees, as a share of the core's bf16 dot-product peak;
- decode of one sequence at 8,192 keys out of an arena of 30 layers, larger than any cache, as a share of the bandwidth
  that one thread reads memory with, measured before and after;
- the same keys in blocks of any order, over those in order;
- 32 sequences over one prefix of 1,024 tokens: the prefix alone as a share of the peak; with 32 tokens of each one's
  own, how much faster than with sharing off; and what looking for prefixes costs where there are none.

Contestants run in turn in one process. Fixed seed; one warm-up; medians of repetitions with their spread; one JSON line
last. The peak is what one core reached with nothing else to do, just before.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from bounds import Bounds, finish, show
from octavo import _native
from octavo.bench.kernel_timing import Peaks
from octavo.bench.machine import ReadBandwidth, describe_machine, machine_line
from octavo.bench.measure import Figure

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
KEY_BYTES = NUM_KV_HEADS * HEAD_DIM * 2 * 2  # K and V of one key
KEY_FLOPS = NUM_HEADS * HEAD_DIM * 2 * 2  # of one query, both products
PREFIX, OWN, MEMBERS = 1024, 32, 32
CALLS = 30  # of one repetition, as many as layers
BOUNDS: Bounds = {
    "prefill 2,048, of peak": (0.6, None),
    "decode 8,192, of bandwidth": (0.8, None),
    "blocks in any order, over in order": (None, 1.05),
    "shared prefix alone, of peak": (0.5, None),
    "shared prefix, times as fast": (1.5, None),
    "nothing shared, over sharing off": (None, 1.1),
}


@dataclass
class Batch:
    """Sequences of one length in an arena of random keys; `queries` tokens of each run, on every layer in turn."""

    ops: _native.Ops
    num_seqs: int
    length: int
    queries: int = 1
    prefix: int = 0  # tokens that all have in the first one's blocks
    num_layers: int = 1
    in_order: bool = False

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        blocks = -(-self.length // BLOCK_SIZE)
        num_blocks = self.num_seqs * blocks
        self.arena = _native.Arena(num_blocks, BLOCK_SIZE, self.num_layers, NUM_KV_HEADS, HEAD_DIM, "bfloat16")
        payload = (rng.standard_normal(self.arena.block_bytes // 2, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        for block in range(num_blocks):
            self.arena.write(block, payload.tobytes())
        order = np.arange(num_blocks, dtype=np.int32) if self.in_order else rng.permutation(num_blocks).astype(np.int32)
        self.tables: npt.NDArray[np.int32] = order.reshape(self.num_seqs, blocks)
        self.tables[:, : self.prefix // BLOCK_SIZE] = self.tables[0, : self.prefix // BLOCK_SIZE]
        self.q = rng.standard_normal((self.num_seqs * self.queries, NUM_HEADS * HEAD_DIM), np.float32)
        self.out = np.empty_like(self.q)
        self.starts = np.arange(self.num_seqs + 1, dtype=np.int32) * self.queries
        self.lengths = np.full(self.num_seqs, self.length, np.int32)

    def call(self, number: int, *, share: bool = True) -> float:
        """Seconds of one layer, the next with each number."""
        began = time.perf_counter()
        self.ops.attend(
            arena=self.arena,
            layer=number % self.num_layers,
            q=self.q,
            query_start_loc=self.starts,
            seq_lens=self.lengths,
            block_tables=self.tables,
            num_heads=NUM_HEADS,
            scale=HEAD_DIM**-0.5,
            share_prefixes=share,
            out=self.out,
        )
        return time.perf_counter() - began

    def seconds(self) -> float:
        return statistics.median(map(self.call, range(CALLS)))


def ratio(first: Callable[[int], float], second: Callable[[int], float]) -> float:
    """Of the medians of calls in turn."""
    pairs = [(first(number), second(number)) for number in range(CALLS)]
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def measure(ops: _native.Ops, peak: float, repeats: int, quick: bool) -> list[Figure]:
    scale = 8 if quick else 1
    figures = [Figure(name, "") for name in BOUNDS]
    long, deep = 2048 // scale, 8192 // scale
    layers = 30 // scale
    whole = Batch(ops, 1, long, queries=long)
    any_order = Batch(ops, 1, deep, num_layers=layers)
    in_order = Batch(ops, 1, deep, num_layers=layers, in_order=True)
    prefix = Batch(ops, MEMBERS, PREFIX, prefix=PREFIX)
    forked = Batch(ops, MEMBERS, PREFIX + OWN, prefix=PREFIX)
    apart = Batch(ops, MEMBERS // scale, PREFIX)
    bandwidth = ReadBandwidth(1)
    for repetition in range(-1, repeats):
        read = bandwidth.measure()
        seconds = any_order.seconds()
        read = (read + bandwidth.measure()) / 2
        values = (
            KEY_FLOPS * long * (long + 1) / 2 / whole.seconds() / peak,
            KEY_BYTES * deep / seconds / read,
            ratio(any_order.call, in_order.call),
            KEY_FLOPS * PREFIX * MEMBERS / prefix.seconds() / peak,
            ratio(partial(forked.call, share=False), forked.call),
            ratio(apart.call, partial(apart.call, share=False)),
        )
        if repetition < 0:
            continue
        for figure, value in zip(figures, values, strict=True):
            figure.values.append(value)
        figures[1].notes["read GB/s"] = read / 1e9
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--isa", default="")
    parser.add_argument("--quick", action="store_true", help="short loads, one repetition: to see that it runs")
    parser.add_argument("--check", action="store_true", help="exit code 1 when a limit is missed")
    options = parser.parse_args()
    machine = describe_machine()
    print(machine_line(machine))
    ops = _native.Ops(options.isa)
    peak = Peaks.measure(options.isa, 1).operations["bf16"]
    print(f"kernels: {ops.isa}; bf16 dot products {peak / 1e9:.0f} GFLOP/s, one core")
    figures = measure(ops, peak, 1 if options.quick else options.repeats, options.quick)
    show(figures, BOUNDS)
    return finish("attention", machine, figures, BOUNDS, check=options.check)


if __name__ == "__main__":
    raise SystemExit(main())
