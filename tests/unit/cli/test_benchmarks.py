"""The benchmark programs run, on the fake model, and end with one JSON line. What they measure is not judged here."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.bench.measure import Figure
from support.cli_runner import environment

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def last_line(program: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / f"{program}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert value["benchmark"] == program
    assert value["machine"]["cores"] >= 1
    for figure in value["figures"].values():
        assert min(figure["values"]) <= figure["median"] <= max(figure["values"])
    return value


@pytest.fixture
def floor(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("floor", FOLDER / "floor.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_machine_program_measures_its_reads() -> None:
    assert list(last_line("machine", "--repeats", "1")["figures"]) == ["read, 2 threads"]


def test_the_scheduler_program_times_both_pools_and_the_look_up() -> None:
    names = list(last_line("scheduler", "--quick")["figures"])
    assert [name for name in names if "1,024 sequences" in name][1].endswith("pool 1,000,000")
    assert "look-up alone, 8,192 tokens" in names


def test_the_paper_program_prints_ours_beside_the_papers() -> None:
    figures = last_line("paper", "--quick")["figures"]
    assert figures["token states, ShareGPT"]["paper"] == 96.3
    assert figures["most waste of a sequence"]["median"] <= 15
    assert figures["blocks saved, 6 samples, Alpaca"]["from_lengths"] > 9


def test_the_floor_program_measures_all_it_promises(floor: ModuleType) -> None:
    value = last_line("floor", "--model", "fake", "--quick")
    assert set(floor.FLOOR) - {"installed size"} <= set(value["figures"])
    assert value["machine"]["model"] == "fake"
    memory = value["figures"]["anonymous memory, idle"]
    assert 0 < memory["engine_process_mb"] < memory["median"]


def test_a_bound_is_met_or_missed_and_nothing_else_is_judged(floor: ModuleType) -> None:
    from bounds import is_missed, verdict

    slow, fast, late, other = (
        Figure("decode, 1 stream", "", [149.0]),
        Figure("decode, 1 stream", "", [150.0]),
        Figure("ready", "", [3.1]),
        Figure("other", "", [1.0]),
    )
    assert [verdict(figure, floor.FLOOR) for figure in (slow, fast, late, other)] == [
        "at least 150: MISSED",
        "at least 150: met",
        "at most 1: MISSED",
        "",
    ]
    assert is_missed([fast, late], floor.FLOOR)
    assert not is_missed([fast, other], floor.FLOOR)


def test_the_installed_size_leaves_out_what_every_environment_has(floor: ModuleType, tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, size in (("octavo/a.so", 5_000_000), ("pip/b.py", 9_000_000), ("setuptools-1.dist-info/c", 9_000_000)):
        path = packages / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    assert floor.installed_size(tmp_path).median == pytest.approx(5.0, abs=0.1)


def test_the_start_program_times_ready_and_the_first_token() -> None:
    figures = last_line("start", "fake", "--repeats", "1")["figures"]
    assert 0 < figures["ready, fake"]["median"] < figures["first token, fake"]["median"]


def test_the_sampling_program_tells_rows_and_shares(smollm2_path: Path) -> None:
    arguments = ("--repeats", "2", "--threads", "2", "--model", str(smollm2_path))
    figures = last_line("sampling", *arguments)["figures"]
    assert {"greedy, 49,152 tokens", "all, penalties, 151,936 tokens"} <= set(figures)
    step = figures["step of 64 rows"]["median"]
    for size in ("49,152", "151,936"):
        ways = [name for name in figures if name.endswith(f", {size} tokens") and not name.startswith("share")]
        dearest = max(figures[name]["median"] for name in ways)
        share = 100 * dearest * 64 / 2 / (1e3 * step)
        assert figures[f"share of a step, {size} tokens"]["median"] == pytest.approx(share, rel=0.01)


def test_the_structured_program_compiles_and_masks(smollm2_path: Path) -> None:
    figures = last_line("structured", "--quick", "--model", str(smollm2_path))["figures"]
    assert len(figures["compile for the tokenizer"]["values"]) == 16
    assert figures["masks, 16 rows of JSON"]["median"] > 0
    assert figures["masks, 16 rows of text with calls"]["median"] > 0


@pytest.mark.parametrize("program", sorted(path.stem for path in FOLDER.glob("*.py") if "argparse" in path.read_text()))
def test_the_options_that_a_program_speaks_of_are_those_it_has(program: str) -> None:
    command = [sys.executable, str(FOLDER / f"{program}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    usage, _, doc = done.stdout.partition("\n\n")
    example = re.search(rf"python benchmarks/{program}\.py(.*?)\n\n", doc, re.DOTALL)
    if example is not None:  # else it is a part of others
        assert set(re.findall(r"--[a-z-]+", example[1])) <= set(re.findall(r"--[a-z-]+", usage))


def test_the_latency_program_meets_streams_and_queues() -> None:
    figures = last_line("latency", "--quick", "--model", "fake")["figures"]
    assert {"target 50: p99 between tokens", "target 50: prefill, share of free"} <= set(figures)
    assert {f"{policy}: first token, 512, ratio" for policy in ("fair", "fcfs")} <= set(figures)


def test_the_memory_program_swaps_and_restarts() -> None:
    figures = last_line("memory", "--quick", "--model", "fake")["figures"]
    assert figures["tokens computed / needed, shared prefix"]["median"] <= 1.05
    assert figures["first token after restart / cold, 4,096"]["median"] > 0
    assert {
        f"swap in from {kind}, {length}" for kind in ("ram", "disk") for length in ("256", "1,024", "4,096")
    } <= set(figures)
