from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.bench.machine import ReadBandwidth, anonymous_bytes, describe_machine, machine_line
from octavo.bench.measure import Figure, Load, measure_decode, measure_prefill, run_load, step_bytes, table
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine

SMALL = Load(num_streams=3, num_prompt_tokens=10, num_new_tokens=5)


@pytest.fixture
def engine() -> Iterator[Engine]:
    built = build_engine(EngineConfig(model="fake", max_model_len=64, max_num_seqs=4))
    yield built
    built.close()


def test_a_load_draws_every_token_it_names_and_leaves_nothing_behind(engine: Engine) -> None:
    timing = run_load(engine, SMALL, seed=1)
    assert timing.num_prompt_tokens == 30
    assert timing.num_decode_steps == 4
    assert timing.num_decoded_tokens == 12
    assert 0 <= timing.overhead_seconds <= timing.decode_seconds
    assert timing.prefill_seconds > 0
    assert engine.stats().num_blocks_used == 0


def test_repetitions_find_nothing_of_each_other_in_the_cache(engine: Engine) -> None:
    for seed in range(4):
        run_load(engine, Load(1, 40, 1), seed)
    assert engine.stats().num_prefix_cache_hits == 0


def test_figures_hold_a_value_for_each_repetition(engine: Engine) -> None:
    rate, overhead = measure_decode(engine, SMALL, 3, ReadBandwidth(1, num_bytes=1 << 16))
    prefill = measure_prefill(engine, 20, 2)
    assert [len(figure.values) for figure in (rate, overhead, prefill)] == [3, 3, 2]
    assert rate.notes["read_bandwidth_gb_s"] > 0
    assert rate.notes["step_bytes"] == step_bytes(engine, SMALL)
    assert 0 < overhead.notes["share_of_step"] < 1
    assert overhead.median > overhead.notes["plan_us"] > 0
    assert "of a step" in table([rate, overhead, prefill])[1]


def test_a_figure_is_its_median_with_its_spread() -> None:
    figure = Figure("decode", "tokens/s", [3.0, 100.0, 2.0], {"share_of_bandwidth": 0.5, "read_bandwidth_gb_s": 30.0})
    assert figure.to_json() == {
        "unit": "tokens/s", "median": 3.0, "values": [3.0, 100.0, 2.0], "share_of_bandwidth": 0.5, "read_bandwidth_gb_s": 30.0,
    }  # fmt: skip
    assert table([figure]) == [f"{'decode':<34}        3.0 tokens/s   2.0 .. 100   50% of 30.0 GB/s"]


def test_a_step_reads_the_weights_once_and_the_kv_of_every_stream(engine: Engine) -> None:
    info = engine.info
    kv = SMALL.num_streams * 12.5 * info.kv_bytes_per_block / info.block_size
    assert step_bytes(engine, SMALL) == info.weight_bytes + kv


def test_the_machine_is_described_in_json_and_in_a_line() -> None:
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert f"{machine['cores']} cores" in machine_line(machine)
    assert str(machine["cpu"]) in machine_line(machine)


def test_outside_of_a_checkout_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_machine()["commit"] == "unknown"


def test_anonymous_memory_counts_what_was_written() -> None:
    """Fresh pages: the C heap may still hold some of what earlier tests gave back."""
    before = anonymous_bytes()
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        for at in range(0, len(held), mmap.PAGESIZE):
            held[at] = 1
        assert anonymous_bytes() - before > 48 << 20
