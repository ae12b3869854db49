"""Question: how soon after `octavo serve MODEL` does the server answer?

    python benchmarks/start.py [MODEL ...] [--repeats 5] [--check]

Seconds from the start of the process to its first healthy answer, and to the first token of a first request (a chat,
streamed), as a client over HTTP sees them. One start before the others is not counted: it leaves the files in the page
cache and their fingerprint under home, as `octavo pull` does. Medians with their spread, one JSON line last.

The limits hold for 2 cores: one for models of up to 200 MB, one for up to 800 MB (1B parameters in 4 bits); a larger
one has none, and takes as long as reading it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bounds import Bounds, finish, show
from octavo.bench.machine import describe_machine, machine_line
from octavo.bench.measure import Figure
from octavo.config import DEFAULT_MODEL, octavo_home
from octavo.loading.model_files import resolve
from server_process import ServerProcess

LIMITS = ((200e6, 1.0, 1.5), (800e6, 2.0, 2.5))  # of a file up to so many bytes: seconds to ready, to the first token
KV_BYTES = "500MB"


def measure(model: str, repeats: int) -> tuple[Figure, Figure]:
    name = Path(model).stem
    ready, first = Figure(f"ready, {name}", "s"), Figure(f"first token, {name}", "s")
    for number in range(repeats + 1):
        with ServerProcess(model, "--kv-cache-memory-bytes", KV_BYTES) as server:
            seconds = server.first_token()
            if number:
                ready.values.append(server.ready_seconds)
                first.values.append(seconds)
    return ready, first


def bounds_of(model: str) -> Bounds:
    path = resolve(model, home=octavo_home(), download=False).path
    size = 0 if path is None else sum(f.stat().st_size for f in ([path] if path.is_file() else path.iterdir()))
    for most, ready, first in LIMITS:
        if size <= most:
            return {f"ready, {Path(model).stem}": (None, ready), f"first token, {Path(model).stem}": (None, first)}
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[DEFAULT_MODEL], metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="exit code 1 when a limit is missed")
    options = parser.parse_args()
    machine = describe_machine()
    print(machine_line(machine), flush=True)
    figures: list[Figure] = []
    bounds: dict[str, tuple[float | None, float | None]] = {}
    for model in options.models:
        bounds |= bounds_of(model)
        figures += measure(model, options.repeats)
    show(figures, bounds)
    return finish("start", machine, figures, bounds, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
