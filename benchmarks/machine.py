"""Question: what is this machine, and how many bytes a second can its memory be read at?

    python benchmarks/machine.py [--threads 2] [--repeats 5]

One buffer of 256 MiB, split between the threads, read by numpy's bitwise-or reduction (which keeps the bus full from
two cores on the machines tried). Prints the median and the spread of the repetitions, and one JSON line last.
"""

from __future__ import annotations

import argparse
import json

from octavo.bench.machine import ReadBandwidth, describe_machine, machine_line
from octavo.bench.measure import Figure, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    machine = describe_machine()
    print(machine_line(machine))
    bandwidth = ReadBandwidth(options.threads)
    figure = Figure(f"read, {options.threads} threads", "GB/s")
    figure.values = [bandwidth.measure() / 1e9 for _ in range(options.repeats)]
    print("\n".join(table([figure])))
    print(
        json.dumps(
            {"benchmark": "machine", "machine": machine, "figures": {figure.name: figure.to_json()}}, ensure_ascii=False
        )
    )


if __name__ == "__main__":
    main()
