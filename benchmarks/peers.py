"""Question: on this machine, how does octavo compare with the other servers, and both with what the machine allows?

    python benchmarks/peers.py --models DIR [--llama-bin DIR] [--vllm-python FILE] [--openvino-python FILE]
                               [--rows WORDS ...] [--contestants WORDS ...] [--results FILE] [--table FILE]

Contestants: octavo and llama.cpp, vLLM, OpenVINO GenAI where they are installed (each in its own environment; one that
is absent is named and left out), in the formats that contestants/catalog.py finds in DIR. All get the same work: random
tokens, greedy, EOS ignored, fixed lengths, the same number of threads. Every contestant keeps its model loaded and is
stopped while another works; within a repetition they follow each other, because a shared machine changes from minute
to minute, so a ratio is that of one repetition. The memory's read bandwidth is measured before and after each.

octavo, vLLM and OpenVINO are stepped in a process of their own without HTTP, llama.cpp by its llama-batched-bench.
"decode" is the rate of all streams together after the last one's first token. The start and the memory of octavo and
llama.cpp are those of their servers, of the other two those of a process that has loaded the library and the model.

--results keeps the measurements in FILE and adds to those it holds, so that a long comparison can be made in parts;
--table writes the tables of all that FILE holds. One JSON line last.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from contestants.base import Contestant, Failed, title
from contestants.catalog import Absent, Places, all_of
from contestants.ours import Octavo
from contestants.products import Products, rows_with_products
from contestants.quiet import Quiet
from contestants.results import Entry, Results
from contestants.rows import LESS_IS_BETTER, ROWS, SHAPES, Row, chosen
from contestants.table import bars_table, cell, everybody_table, verdict
from octavo.bench.machine import ReadBandwidth, describe_machine, machine_line

ONCE = {"vLLM"}  # too slow to start to do so in every repetition


class Comparison:
    def __init__(self, results: Results, options: argparse.Namespace) -> None:
        self._results = results
        self._options = options
        self._bandwidth = ReadBandwidth(options.threads)
        self._run = time.strftime("%Y-%m-%d %H:%M:%S")
        self._quiet = Quiet(options.quiet)
        self._failed: set[tuple[str, str]] = set()  # (group, title): said once

    def measure(self, rows: Sequence[Row], contestants: Sequence[Contestant]) -> None:
        """rows: of one model and class. Loads who is needed, and lets all go at the end."""
        groups = {row.group: row for row in rows}
        try:
            self._measure_products(rows, contestants)
            for contestant in contestants:
                self._prepare(contestant, groups.values())
            for row in groups.values():
                taking_part = list(contestants)
                for repeat in range(self._options.repeats):
                    self._round(row, taking_part, repeat)
                    if repeat == 0:
                        same = [other for other in rows if other.group == row.group]
                        slow = slow_peers(self._results, same, self._options.drop)
                        taking_part = [one for one in contestants if title(one) not in slow]
                for same in (other for other in rows if other.group == row.group):
                    self._print(same)
        finally:
            self._quiet.end()
            for contestant in contestants:
                contestant.close()

    def _prepare(self, contestant: Contestant, groups: Sequence[Row]) -> None:
        is_needed = any(row.load.kind != "start" for row in groups)
        try:
            self._results.know(contestant, contestant.prepare() if is_needed else "")
        except Failed as error:
            print(f"{title(contestant)}: {error}", flush=True)
            self._failed |= {(row.group, title(contestant)) for row in groups}

    def _measure_products(self, rows: Sequence[Row], contestants: Sequence[Contestant]) -> None:
        for contestant in contestants:
            with_products = rows_with_products(rows) if isinstance(contestant, Octavo) else []
            if not with_products:
                continue
            assert isinstance(contestant, Octavo)
            form, options = contestant.format, self._options
            products = Products(contestant.model, form, contestant.path, options.threads, options.log)
            try:
                for row in with_products:
                    with self._quiet:
                        products.measure(row, self._results, self._bandwidth)
            finally:
                self._quiet.end()
                products.close()

    def _round(self, row: Row, contestants: Sequence[Contestant], repeat: int) -> None:
        made = self._results.begin_round(row, self._run)
        for contestant in contestants:
            name = title(contestant)
            if (row.group, name) in self._failed or (row.load.kind == "start" and repeat and contestant.kind in ONCE):
                continue
            try:
                with self._quiet:
                    before = self._bandwidth.measure()
                    figures = contestant.measure(row.load, f"{self._run} {row.group} {repeat}")
                    made.entries[name] = Entry(figures, (before, self._bandwidth.measure()))
            except Failed as error:
                print(f"{name}, {row.name}: {error}", flush=True)
                self._failed.add((row.group, name))
            if self._options.results:
                self._results.save(self._options.results)

    def _print(self, row: Row) -> None:
        print(row.name, flush=True)
        for name in self._results.titles(row):
            ratios = sorted(self._results.ratios(row, name)) if name.startswith("octavo ") else []
            shown = f"{ratios[len(ratios) // 2]:6.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})" if ratios else ""
            print(f"    {name:<18} {cell(self._results, row, name):<34} {shown}".rstrip(), flush=True)
        judged = verdict(self._results, row)
        print(f"    {judged.bars}: {'met' if judged.is_met else 'MISSED'}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, metavar="DIR", help="the files; see contestants/catalog.py")
    parser.add_argument("--llama-bin", type=Path, metavar="DIR", help="holds llama-batched-bench and llama-server")
    parser.add_argument("--vllm-python", type=Path, metavar="FILE", help="the interpreter that can import vllm")
    parser.add_argument("--openvino-python", type=Path, metavar="FILE", help="the one that can import openvino_genai")
    parser.add_argument("--rows", nargs="+", default=[""], metavar="WORDS", help="rows whose name holds one of these")
    parser.add_argument("--contestants", nargs="+", default=[""], metavar="WORDS", help="those who are named so")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--drop", type=float, default=0.6, metavar="SHARE",
        help="peers below this share of the best one in a row's first repetition sit out the others  [default: 0.6]",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak-bf16", type=float, default=469.0, help="GFLOP/s of all threads  [default: 469]")
    parser.add_argument("--peak-int8", type=float, default=935.0, help="GOP/s of all threads  [default: 935]")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where measurements are kept and added to")
    parser.add_argument("--table", type=Path, metavar="FILE", help="where the tables go, as markdown")
    parser.add_argument("--only-table", action="store_true", help="measure nothing")
    parser.add_argument("--log", type=Path, default=Path("peers.log"), metavar="FILE", help="what the workers say")
    parser.add_argument("--quiet", default="", metavar="COMMAND", help=Quiet.__doc__)
    options = parser.parse_args()
    if options.models is None and not options.only_table:
        parser.error("--models names the folder with the files of all contestants; give it, or --only-table")
    return options


def slow_peers(results: Results, rows: Sequence[Row], share: float) -> set[str]:
    """Peers that are below `share` of the best in every one of the rows, all of one group."""
    slow: list[set[str]] = []
    for row in rows:
        speeds = {name: results.values(row, name)[0] for name in results.peers(row)}
        if row.figure in LESS_IS_BETTER:
            speeds = {name: 1 / seconds for name, seconds in speeds.items()}
        slow.append({name for name, speed in speeds.items() if speed < share * max(speeds.values())})
    return set.intersection(*slow)


def select(options: argparse.Namespace, model: str) -> list[Contestant]:
    """Says who is absent."""
    places = Places(
        options.models, options.llama_bin, options.vllm_python, options.openvino_python, options.threads, options.log
    )
    found: list[Contestant] = []
    for contestant in all_of(places, model):
        name = contestant.title if isinstance(contestant, Absent) else title(contestant)
        if not any(words in name for words in options.contestants):
            continue
        if isinstance(contestant, Absent):
            print(f"left out, {model}: {name}: {contestant.reason}", flush=True)
        else:
            found.append(contestant)
    return found


def main() -> int:
    """Ends by SystemExit when told to stop, so that no stopped worker is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = parse()
    machine = describe_machine()
    print(machine_line(machine), flush=True)
    peaks = (options.peak_bf16 * 1e9, options.peak_int8 * 1e9)
    path = options.results
    results = Results(machine, peaks) if path is None else Results.load(path, machine, peaks)
    rows = chosen(options.rows)
    if not options.only_table:
        comparison = Comparison(results, options)
        for model, bits in dict.fromkeys((row.model, row.bits) for row in rows):
            part = [row for row in rows if (row.model, row.bits) == (model, bits)]
            taking_part = [one for one in select(options, model) if part[0].is_in_class(one.format.bits)]
            comparison.measure(part, taking_part)
    tables = [bars_table(results, ROWS), *(everybody_table(results, ROWS, model) for model in SHAPES)]
    text = "\n\n".join("\n".join(table) for table in tables if table) + "\n"
    if options.table:
        options.table.write_text(text)
    print(text)
    print(json.dumps({"benchmark": "peers", **results.to_json()}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
