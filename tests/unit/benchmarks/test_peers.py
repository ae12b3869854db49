"""benchmarks/peers.py: roofline, ratios, verdicts, merging, and a worker that is a real process."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contestants.base import WORKERS, Failed, Format, WorkerContestant, run_on
from contestants.catalog import Absent, Places, all_of
from contestants.quiet import Quiet
from contestants.results import Entry, Results
from contestants.roofline import Limits, best_figure, decode_step_seconds, prefill_seconds, product_seconds
from contestants.rows import ROWS, SHAPES, SHARED, SIXTEEN, Load, Row, chosen
from contestants.table import bars_table, everybody_table, gemm_key, verdict
from contestants.workers.loop import make_prompts, timings

SMOL = SHAPES["smollm2"]
LIMITS = Limits(35e9, 469e9, 935e9)
READS = (30e9, 40e9)
ROW = Row("16 streams", "smollm2", SIXTEEN, "decode", least_ratio=2.0)


class Somebody:
    """A contestant that is measured nowhere."""

    def __init__(self, kind: str, form: str, bits: int, model: str = "smollm2") -> None:
        self.kind, self.model, self.format = kind, model, Format(form, bits, 100_000_000)

    def prepare(self) -> str:
        return ""

    def measure(self, load: Load, seed: str) -> dict[str, float]:
        raise AssertionError("nobody measures here")

    def close(self) -> None: ...


def results_of(row: Row, *rounds: dict[str, float], run: str = "a", results: Results | None = None) -> Results:
    """Rounds by title: {"octavo Q4_1": 100.0}; forms that begin with "Q4" have 4 bits, with "bf" 16, others 8."""
    results = results or Results({}, (469e9, 935e9))
    for figures in rounds:
        made = results.begin_round(row, run)
        for name, value in figures.items():
            kind, form = name.rsplit(" ", 1)
            bits = 4 if form.startswith("Q4") else 16 if form.startswith("bf") else 8
            results.know(Somebody(kind, form, bits, row.model), "")
            made.entries[name] = Entry({row.figure: value}, READS)
    return results


# -- roofline ------------------------------------------------------------------------------------------------------------


def test_the_shapes_have_the_models_numbers_of_weights() -> None:
    assert SMOL.num_weights == pytest.approx(134.5e6, rel=0.001)
    assert SHAPES["1b"].num_weights == pytest.approx(1073.7e6, rel=0.001)
    assert SMOL.kv_bytes_per_token == 30 * 2 * 3 * 64 * 2


def test_one_stream_is_bound_by_bytes_and_many_by_operations() -> None:
    one, many = Load(1, 128, 64), Load(64, 128, 128)
    read = (100e6 + 160 * SMOL.kv_bytes_per_token) / 35e9
    assert decode_step_seconds(SMOL, one, 100e6, 4, LIMITS) == pytest.approx(read)
    at_8_bits, at_16_bits = (decode_step_seconds(SMOL, many, 100e6, bits, LIMITS) for bits in (8, 16))
    attention = 4 * 30 * 576 * 64 * 192 / 469e9
    assert at_8_bits == pytest.approx(2 * SMOL.num_weights * 64 / 935e9 + attention)
    assert at_16_bits == pytest.approx(2 * SMOL.num_weights * 64 / 469e9 + attention)


def test_a_shared_prefix_is_computed_and_read_once() -> None:
    alone = Load(32, 1056, 32)
    assert prefill_seconds(SMOL, SHARED, 8, LIMITS) < 0.1 * prefill_seconds(SMOL, alone, 8, LIMITS)
    cached = prefill_seconds(SMOL, SHARED, 8, LIMITS, is_prefix_cached=True)
    assert cached == pytest.approx(
        prefill_seconds(SMOL, SHARED, 8, LIMITS) - prefill_seconds(SMOL, Load(1, 1024, 1), 8, LIMITS), rel=0.01
    )


def test_products_alone_read_every_weight_once_and_run_the_head_once_a_sequence() -> None:
    assert product_seconds(SMOL, 1, 1, 100e6, 4, LIMITS) == pytest.approx(100e6 / 35e9)
    of_prompts = product_seconds(SMOL, 1, 512, 100e6, 4, LIMITS)
    assert of_prompts == pytest.approx(2 * (512 * SMOL.num_layer_weights + SMOL.num_head_weights) / 935e9)
    assert product_seconds(SMOL, 512, 1, 100e6, 4, LIMITS) > 1.2 * of_prompts


def test_a_start_has_no_roofline() -> None:
    assert best_figure(SMOL, Load(1, 16, 2, kind="start"), "ready", 100e6, 4, LIMITS) is None


# -- ratios and verdicts -------------------------------------------------------------------------------------------------


def test_a_ratio_is_to_the_best_peer_of_its_own_round() -> None:
    results = results_of(
        ROW,
        {"octavo Q4_1": 100.0, "vLLM w8a8": 50.0, "llama.cpp Q4_0": 40.0},
        {"octavo Q4_1": 60.0, "vLLM w8a8": 20.0, "llama.cpp Q4_0": 30.0},
    )
    assert results.ratios(ROW, "octavo Q4_1") == [2.0, 2.0]
    assert results.best_peer(ROW) in ("vLLM w8a8", "llama.cpp Q4_0")


def test_a_round_without_us_or_without_a_peer_has_no_ratio() -> None:
    results = results_of(ROW, {"octavo Q4_1": 100.0}, {"vLLM w8a8": 50.0}, {"octavo Q4_1": 90.0, "vLLM w8a8": 30.0})
    assert results.ratios(ROW, "octavo Q4_1") == [3.0]


def test_of_seconds_the_least_is_best() -> None:
    row = Row("shared", "smollm2", SHARED, "cold", most_ratio=0.5)
    results = results_of(row, {"octavo Q4_1": 1.0, "octavo w8a8": 4.0, "vLLM bf16": 4.0, "OpenVINO int8": 20.0})
    assert results.best_peer(row) == "vLLM bf16"
    assert results.ratios(row, "octavo Q4_1") == [0.25]
    assert verdict(results, row).is_met


def test_only_formats_of_the_rows_class_meet() -> None:
    row = Row("8-bit", "1b", SIXTEEN, "decode", 8, 1.4)
    results = results_of(row, {"octavo w8a8": 70.0, "vLLM w8a8": 50.0, "llama.cpp Q4_0": 99.0, "vLLM bf16": 98.0})
    assert results.peers(row) == ["vLLM w8a8"]
    assert verdict(results, row).is_met


def test_a_form_that_does_not_count_cannot_meet_the_bar() -> None:
    row = Row("prefill", "smollm2", SIXTEEN, "prefill", least_ratio=1.2, ours=("w8a8",))
    results = results_of(row, {"octavo Q4_1": 500.0, "octavo w8a8": 110.0, "vLLM w8a8": 100.0})
    assert not verdict(results, row).is_met


def test_a_share_of_the_limit_is_asked_of_the_named_form_alone() -> None:
    row = Row("1 stream", "smollm2", Load(1, 128, 64), "decode", least_ratio=1.9, least_share=0.8, share_of="Q4_1")
    best = best_figure(SMOL, row.load, "decode", 100e6, 4, LIMITS)
    assert best is not None
    for share, is_met in ((0.81, True), (0.79, False)):
        figures = {"octavo Q4_1": share * best, "octavo w8a8": 0.9 * best, "vLLM w8a8": 10.0}
        judged = verdict(results_of(row, figures), row)
        assert judged.bars == "≥ 1.9x, Q4_1 ≥ 80% of the limit"
        assert judged.is_met is is_met


def test_what_was_not_measured_is_not_met() -> None:
    assert not verdict(results_of(ROW, {"octavo Q4_1": 100.0}), ROW).is_met


# -- tables ----------------------------------------------------------------------------------------------------------------


def test_the_table_puts_the_verdict_on_our_best_format_and_the_others_below() -> None:
    results = results_of(ROW, {"octavo Q4_1": 80.0, "octavo w8a8": 100.0, "vLLM w8a8": 50.0})
    results.gemms[gemm_key("smollm2", "w8a8", ROW)] = 0.87
    _, _, first, second = bars_table(results, [ROW])
    assert first.startswith("| 16 streams, tok/s | w8a8 100 [")
    assert "| vLLM w8a8 50.0 [" in first
    assert "| 2.00x (2.00-2.00) | ≥ 2x | met | 87% | 30-40 |" in first
    assert second.startswith("|  | Q4_1 80.0 [")
    assert "| 1.60x (1.60-1.60) |  |  |  |  |" in second


def test_everybodys_table_leaves_gaps_where_nothing_was_measured() -> None:
    other = Row("1 stream", "smollm2", Load(1, 128, 64), "decode")
    results = results_of(ROW, {"octavo Q4_1": 80.0})
    results_of(other, {"vLLM w8a8": 50.0}, results=results)
    head, _, sixteen, one = everybody_table(results, [ROW, other], "smollm2")
    assert head == "| work | octavo Q4_1 | vLLM w8a8 |"
    assert sixteen.endswith("| – |")
    assert "| – | 50.0 [" in one
    assert everybody_table(results, [ROW, other], "1b") == []


def test_every_row_of_the_comparison_has_a_bar_and_its_own_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all((row.least_ratio or row.most_ratio or row.most) is not None for row in ROWS)
    assert {row.figure for row in chosen(["SmolLM2, 32"])} == {"cold", "warm"}


# -- the file --------------------------------------------------------------------------------------------------------------


def test_a_later_run_replaces_a_group_and_leaves_the_others(tmp_path: Path) -> None:
    other = Row("1 stream", "smollm2", Load(1, 128, 64), "decode")
    results = results_of(ROW, {"octavo Q4_1": 1.0, "vLLM w8a8": 9.0}, {"octavo Q4_1": 2.0})
    results_of(other, {"octavo Q4_1": 3.0}, results=results)
    path = tmp_path / "results.json"
    results.save(path)
    again = Results.load(path, {"cpu": "today's"}, (1.0, 2.0))
    assert again.values(ROW, "octavo Q4_1") == [1.0, 2.0]
    results_of(ROW, {"octavo Q4_1": 4.0}, {"octavo Q4_1": 5.0}, run="b", results=again)
    assert again.values(ROW, "octavo Q4_1") == [4.0, 5.0]
    assert again.peers(ROW) == []
    assert again.values(other, "octavo Q4_1") == [3.0]
    assert again.machine == {"cpu": "today's"}


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"benchmark": "floor"}))
    with pytest.raises(SystemExit, match="holds no results of this program"):
        Results.load(path, {}, (1.0, 1.0))


# -- contestants -----------------------------------------------------------------------------------------------------------


def test_who_is_absent_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "smollm2-135m-bf16").mkdir()
    places = Places(tmp_path, tmp_path / "bin", None, None, 2, tmp_path / "log")
    reasons = {absent.title: absent.reason for absent in all_of(places, "smollm2") if isinstance(absent, Absent)}
    assert reasons["octavo Q4_1"] == f"there is no {tmp_path / 'smollm2-135m.gguf'}"
    assert reasons["llama.cpp Q4_0"] == f"there is no {tmp_path / 'bin'}"
    assert reasons["vLLM bf16"] == "--vllm-python was not given"


def test_prompts_repeat_with_their_seed_and_share_what_they_should() -> None:
    cold, warm = (make_prompts(SHARED.request(seed, "prefix")) for seed in ("a", "b"))
    assert cold == make_prompts(SHARED.request("a", "prefix"))
    assert {tuple(prompt[:1024]) for prompt in cold + warm} == {tuple(cold[0][:1024])}
    assert len({tuple(prompt[1024:]) for prompt in cold + warm}) == 64
    assert {len(prompt) for prompt in cold} == {1056}


def test_decode_counts_what_came_after_the_last_streams_first_token() -> None:
    assert timings([[1, 2], [3, 4]], [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], 0.5) == {
        "prefill_seconds": 1.5,
        "decode_seconds": 2.0,
        "wall_seconds": 3.5,
        "num_prompt_tokens": 4,
        "num_decoded_tokens": 3,
    }


def test_a_shared_load_is_asked_again_with_the_same_prefix() -> None:
    asked: list[dict[str, object]] = []

    def ask(request: dict[str, object]) -> dict[str, float]:
        asked.append(request)
        return {"wall_seconds": float(len(asked))}

    assert run_on(ask, SHARED, "s") == {"cold": 1.0, "warm": 2.0}
    assert asked[0]["prefix_seed"] == asked[1]["prefix_seed"]
    assert asked[0]["seed"] != asked[1]["seed"]


WORKER = """
import sys
sys.path.insert(0, {folder!r})
from loop import answers, serve
import time
stream = answers()
print("a library talks")
def run(prompts, num_new_tokens):
    if num_new_tokens == 13:
        raise ValueError("unlucky")
    if num_new_tokens == 14:
        sys.exit(3)
    return [[time.perf_counter() for _ in range(num_new_tokens)] for _ in prompts]
serve(run, stream, {{"version": "1.2"}})
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerContestant]:
    program = tmp_path / "worker.py"
    program.write_text(WORKER.format(folder=str(WORKERS)))
    contestant = WorkerContestant(
        "test", "smollm2", Format("int8", 8, 1), [sys.executable, str(program)], log=tmp_path / "log"
    )
    yield contestant
    contestant.close()


def state(contestant: WorkerContestant) -> str:
    assert contestant._process is not None
    pid = contestant._process._process.pid
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)  # SIGSTOP works when it is delivered, not when it is sent
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def test_a_worker_answers_and_is_stopped_in_between(worker: WorkerContestant) -> None:
    assert worker.prepare() == "1.2"
    assert state(worker) == "T"
    figures = worker.measure(Load(2, 8, 4), "s")
    assert figures["prefill"] > 0
    assert figures["decode"] > 0
    assert state(worker) == "T"
    assert "a library talks" in worker.log.read_text()


def test_a_worker_that_fails_says_why_and_goes_on(worker: WorkerContestant) -> None:
    with pytest.raises(Failed, match="ValueError: unlucky"):
        worker.measure(Load(1, 8, 13), "s")
    assert worker.measure(Load(1, 8, 4), "s")["prefill"] > 0


def test_a_worker_that_ends_is_named_with_its_log(worker: WorkerContestant) -> None:
    with pytest.raises(Failed, match=r"it ended; see .*log"):
        worker.measure(Load(1, 8, 14), "s")


def test_a_closed_worker_is_gone(worker: WorkerContestant) -> None:
    worker.prepare()
    assert worker._process is not None
    process = worker._process._process
    worker.close()
    assert process.returncode == -signal.SIGKILL


def test_a_start_is_measured_on_a_process_of_its_own(worker: WorkerContestant) -> None:
    figures = worker.measure(Load(4, 8, 4, kind="start"), "s")
    assert 0 < figures["ready"] < figures["first_answer"]
    assert figures["peak_memory"] > 1e6
    assert worker._process is None


# -- quiet -----------------------------------------------------------------------------------------------------------------


def test_quiet_waits_for_the_first_line_and_ends_by_end_of_input(tmp_path: Path) -> None:
    mark = tmp_path / "over"
    quiet = Quiet(f"sh -c 'echo; cat; touch {mark}'")
    with quiet:
        assert not mark.exists()
    assert not mark.exists()  # others get their turn after a while, not after each measurement
    quiet.end()
    assert mark.exists()


def test_quiet_that_is_interrupted_while_it_waits_leaves_nothing_behind() -> None:
    quiet = Quiet("sh -c 'kill -ALRM $PPID; exec sleep 1000'")
    previous = signal.signal(signal.SIGALRM, lambda *_: sys.exit(1))
    try:
        with pytest.raises(SystemExit), quiet:
            raise AssertionError("it never says that it is ready")
    finally:
        signal.signal(signal.SIGALRM, previous)
    quiet.end()
    assert quiet._process is None
