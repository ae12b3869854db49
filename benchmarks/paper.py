"""Question: how much of the KV memory holds tokens, how many blocks does sharing save, and how much do traces hit?

    python benchmarks/paper.py [--quick]

The PagedAttention paper's figures on the paper's pool (OPT-13B on 40 GB: 981 blocks of 16 tokens, watermark 1%, no
prefix cache) from the real scheduler: token states' share of the KV memory on ShareGPT lengths at overload (Fig 2),
the worst waste of any sequence in any step, and the block saving of 2, 4 and 6 samples on Alpaca lengths (Fig 15)
beside what follows from the lengths alone. Then prefix hits of two public traces through the real pool, where the
traces are at hand. Nothing is random: one repetition. A table, and one JSON line last.
"""

from __future__ import annotations

import argparse
import json

import paper_replay as replays
from octavo.bench.machine import describe_machine, machine_line
from octavo.bench.measure import Figure

QUICK_ROWS = 600
ROW = "{:<44}{:>10}{:>16}{:>10}"


def memory_figures(num_rows: int | None) -> list[Figure]:
    sharegpt = replays.read_lengths("sharegpt_first_round_opt")[:num_rows]
    alpaca = replays.read_lengths("alpaca_opt")[:num_rows]
    basic = replays.replay(sharegpt)
    share = Figure("token states, ShareGPT", "%", [100 * basic.token_share], {"paper": replays.PAPER_TOKEN_SHARE})
    share.notes |= {"num_steps": basic.num_steps, "preemptions_per_request": basic.num_preemptions / basic.num_finished}
    figures = [share]
    worst = basic.max_waste_tokens
    for num_samples, printed in replays.PAPER_BLOCK_SAVING.items():
        seen = replays.replay(alpaca, num_samples)
        worst = max(worst, seen.max_waste_tokens)
        notes = {"paper": printed, "from_lengths": 100 * replays.saving_of_lengths(alpaca, num_samples)}
        notes |= {"num_steps": seen.num_steps, "preemptions_per_request": seen.num_preemptions / seen.num_finished}
        name = f"blocks saved, {num_samples} samples, Alpaca"
        figures.append(Figure(name, "%", [100 * seen.block_saving], notes))
    figures.insert(1, Figure("most waste of a sequence", "slots", [worst], {"limit": replays.BLOCK_SIZE - 1}))
    return figures


def hit_figures(num_rows: int | None) -> list[Figure]:
    figures = []
    for name, targets in replays.TRACE_HITS.items():
        trace = replays.read_trace(name)[:num_rows]
        for num_blocks, target in targets.items():
            share = 100 * replays.replay_prefixes(trace, num_blocks).share
            notes = {"target": target} if num_rows is None else {}  # of the whole trace
            figures.append(Figure(f"prefix hits, {name}, {num_blocks:,} blocks", "%", [share], notes))
    return figures


def line(figure: Figure) -> str:
    """Ours, what the lengths or the trace say, what the paper prints."""
    derived = next((figure.notes[note] for note in ("from_lengths", "target", "limit") if note in figure.notes), None)
    shown = [figure.median, derived, figure.notes.get("paper")]
    digits = 0 if figure.unit == "slots" else 2
    cells = ["" if value is None else f"{value:.{digits}f} {figure.unit}" for value in shown]
    return ROW.format(figure.name, *cells).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_ROWS} rows of each file")
    options = parser.parse_args()
    num_rows = QUICK_ROWS if options.quick else None
    machine = describe_machine()
    print(machine_line(machine))
    figures = memory_figures(num_rows)
    if replays.TRACES.is_dir():
        figures += hit_figures(num_rows)
    else:
        print(f"no traces in {replays.TRACES}: prefix hits are left out")
    print(ROW.format("", "octavo", "from the data", "paper"))
    print("\n".join(line(figure) for figure in figures))
    named = {figure.name: figure.to_json() for figure in figures}
    print(json.dumps({"benchmark": "paper", "machine": machine, "figures": named}, ensure_ascii=False))


if __name__ == "__main__":
    main()
