"""Question: does octavo stay above its floor on this machine? Speed, memory, time to ready, size on disk.

    python benchmarks/floor.py [--model smollm2] [--repeats 5] [--quick] [--installed-size VENV]

Decode of 1 stream (128 + 64 tokens) and of 16 (128 + 128), prefill of 128 and of 2,048 tokens, in process; then a real
`octavo serve` with 1 GB of KV allowed: seconds to ready, and its anonymous memory idle after load and after one
request. Beside each decode figure stands the share of the memory's read bandwidth, measured around each repetition,
that the bytes a step must read come to. Fixed seeds, one warm-up each, medians with their spread, one JSON line last.

The floor is a promise for 2 cores with AVX-512 and the default model; elsewhere it is a comparison. Exit code 0 either
way, unless --check is given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bounds import Bounds, finish, model_parser, show
from octavo.bench.machine import ReadBandwidth, describe_machine, machine_line
from octavo.bench.measure import Figure, Load, measure_decode, measure_prefill
from octavo.cli.sizes import format_size
from octavo.config import EngineConfig, forced_isa
from octavo.engine.build import build_engine
from server_process import ServerProcess

FLOOR: Bounds = {
    "decode, 1 stream": (150, None),
    "decode, 16 streams": (600, None),
    "prefill, 128 tokens": (1000, None),
    "prefill, 2,048 tokens": (1000, None),
    "ready": (None, 1.0),
    "anonymous memory, idle": (None, 600.0),
    "anonymous memory, after one request": (None, 600.0),
    "installed size": (None, 200.0),
}
LONGEST = 2048 + 1
KV_BYTES = "1GB"


def measure_speed(options: argparse.Namespace, machine: dict[str, object]) -> list[Figure]:
    """In process. Adds what the engine is to `machine`."""
    config = EngineConfig(
        model=options.model,
        max_model_len=LONGEST,
        max_num_seqs=16,
        num_threads=options.threads,
        isa=options.isa or forced_isa(),
    )
    engine = build_engine(config)
    try:
        info = engine.info
        machine |= {
            "model": info.model, "weight_form": info.weight_form, "weight_bytes": info.weight_bytes, "isa": info.isa,
            "num_threads": info.num_threads, "kv_dtype": info.kv_dtype,
        }  # fmt: skip
        print(f"{info.model} · {info.weight_form} · {info.isa} · {info.num_threads} threads", flush=True)
        bandwidth = ReadBandwidth(info.num_threads)
        one, sixteen = (Load(1, 8, 4), Load(16, 8, 4)) if options.quick else (Load(1, 128, 64), Load(16, 128, 128))
        figures: list[Figure] = []
        for load in (one, sixteen):
            figures += measure_decode(engine, load, options.repeats, bandwidth)
        return figures + [measure_prefill(engine, count, options.repeats) for count in (128, 2048)]
    finally:
        engine.close()


def measure_server(options: argparse.Namespace) -> list[Figure]:
    """A real server, started `repeats` times (at most 3)."""
    ready = Figure("ready", "s")
    idle = Figure("anonymous memory, idle", "MB")
    used = Figure("anonymous memory, after one request", "MB")
    for _ in range(min(options.repeats, 3)):
        with ServerProcess(options.model, "--kv-cache-memory-bytes", KV_BYTES) as server:
            ready.values.append(server.ready_seconds)
            engine, both = server.anonymous_bytes()
            idle.values.append(both / 1e6)
            idle.notes = {"engine_process_mb": engine / 1e6}
            server.complete("The sky is", 32)
            engine, both = server.anonymous_bytes()
            used.values.append(both / 1e6)
            used.notes = {"engine_process_mb": engine / 1e6}
    return [ready, idle, used]


def installed_size(environment: Path) -> Figure:
    """Everything in the environment's site-packages but pip and setuptools, which every environment has."""
    [packages] = environment.glob("lib/python3*/site-packages")
    others = ("pip", "setuptools", "_distutils_hack", "pkg_resources")
    files = (
        path
        for top in packages.iterdir()
        if not top.name.startswith(others)
        for path in (top.rglob("*") if top.is_dir() else [top])
        if path.is_file() and not path.is_symlink()
    )
    return Figure("installed size", "MB", [sum(path.stat().st_blocks * 512 for path in files) / 1e6])


def main() -> int:
    parser = model_parser(__doc__)
    parser.add_argument("--installed-size", type=Path, metavar="VENV", help="weigh this environment's packages too")
    options = parser.parse_args()
    options.repeats = 1 if options.quick else options.repeats
    machine = describe_machine()
    print(machine_line(machine), flush=True)
    figures = measure_speed(options, machine)
    show(figures, FLOOR)
    server = measure_server(options)
    if options.installed_size is not None:
        server.append(installed_size(options.installed_size))
    show(server, FLOOR)
    figures += server
    print(f"weights {format_size(float(str(machine['weight_bytes'])))}; KV allowed to the server {KV_BYTES}")
    return finish("floor", machine, figures, FLOOR, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
