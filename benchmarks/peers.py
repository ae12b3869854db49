"""Question: on this machine, on the same file, how does octavo compare with llama.cpp?

    python benchmarks/peers.py --llama-bin DIR [--model smollm2] [--repeats 3]

DIR holds `llama-batched-bench`, built for this processor. Both contestants run the same GGUF file with
the same number of threads and the same lengths, without HTTP, greedy, one after the other within each repetition, and
the memory's read bandwidth is measured before each: a shared machine changes from minute to minute, so only ratios
within one repetition are compared. Prints a table of medians with their spread and the ratio, one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from octavo.bench.machine import ReadBandwidth, describe_machine, machine_line
from octavo.bench.measure import Load, run_load
from octavo.config import DEFAULT_MODEL, EngineConfig, octavo_home
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.loading.model_files import resolve


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a load, and which of its two rates is compared."""

    name: str
    load: Load
    is_prefill: bool = False


ROWS = (
    Row("1 stream, 128 + 64: decode", Load(1, 128, 64)),
    Row("16 streams, 128 + 128: decode", Load(16, 128, 128)),
    Row("64 streams, 128 + 128: decode", Load(64, 128, 128)),
    Row("8 streams at context 2,048, + 32: decode", Load(8, 2048, 32)),
    Row("prefill of 128 tokens", Load(1, 128, 64), is_prefill=True),
    Row("prefill of 2,048 tokens", Load(1, 2048, 32), is_prefill=True),
)


class Octavo:
    name = "octavo"

    def __init__(self, model: str, num_threads: int) -> None:
        self._engine: Engine = build_engine(
            EngineConfig(model=model, max_model_len=2048 + 128, max_num_seqs=64, num_threads=num_threads)
        )
        self._seed = 0

    def rate(self, row: Row) -> float:
        """Tokens a second of all streams together."""
        self._seed += 1
        timing = run_load(self._engine, row.load, self._seed)
        if row.is_prefill:
            return timing.num_prompt_tokens / timing.prefill_seconds
        return timing.num_decoded_tokens / timing.decode_seconds


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, program: Path, path: Path, num_threads: int) -> None:
        self._command = [
            str(program), "-m", str(path), "-t", str(num_threads), "-tb", str(num_threads),
            "-b", "2048", "-ub", "512", "-fa", "on", "-no-kvu", "--output-format", "jsonl",
        ]  # fmt: skip

    def rate(self, row: Row) -> float:
        """As the program counts: prefill and decode timed apart."""
        load = row.load
        context = load.num_streams * (load.num_prompt_tokens + load.num_new_tokens)
        words = ["-c", str(context), "-npl", str(load.num_streams)]
        words += ["-npp", str(load.num_prompt_tokens), "-ntg", str(load.num_new_tokens)]
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, check=True)
        [line] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return float(line["speed_pp"] if row.is_prefill else line["speed_tg"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, required=True, metavar="DIR")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="", help="only rows whose name holds one of these, comma-separated")
    options = parser.parse_args()
    files = resolve(options.model, home=octavo_home())
    assert files.path is not None
    machine = describe_machine()
    print(machine_line(machine))
    bandwidth = ReadBandwidth(options.threads)
    ours = Octavo(str(files.path), options.threads)
    peer = LlamaCpp(options.llama_bin / "llama-batched-bench", files.path, options.threads)
    print(f"{'tokens/s, median (spread)':<42} {ours.name:>20} {peer.name:>20}  ratio (spread)")
    results = []
    for row in (row for row in ROWS if any(part in row.name for part in options.rows.split(","))):
        ours.rate(row)  # warm-up
        rates: dict[str, list[float]] = {ours.name: [], peer.name: []}
        reads = []
        for _ in range(options.repeats):
            for contestant in (ours, peer):
                reads.append(bandwidth.measure() / 1e9)
                rates[contestant.name].append(contestant.rate(row))
        ratios = [a / b for a, b in zip(rates[ours.name], rates[peer.name], strict=True)]
        cells = [f"{statistics.median(r):,.0f} ({min(r):,.0f}-{max(r):,.0f})" for r in rates.values()]
        print(
            f"{row.name:<42} {cells[0]:>20} {cells[1]:>20}  "
            f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})",
            flush=True,
        )
        results.append({"row": row.name, "rates": rates, "ratios": ratios, "read_bandwidth_gb_s": reads})
    print(json.dumps({"benchmark": "peers", "machine": machine, "model": files.name, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
