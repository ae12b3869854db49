from __future__ import annotations

import pytest

from octavo.bench.openai_stream import Outcome
from octavo.bench.percentiles import Goodput
from octavo.bench.serve_report import ServeReport, latencies_of, most_at_once

START = 100.0


def answered(at: float, first: float, gap: float, tokens: int, late: float = 0.0, slot: float = 0.0) -> Outcome:
    """An answer of one token an event."""
    sent = START + at + late + slot
    times = [sent + first + gap * i for i in range(tokens)]
    return Outcome(START + at, sent, slot, times, times[-1], 10, tokens, 4, has_usage=True)


def failed(at: float, kind: str, words: str) -> Outcome:
    return Outcome(START + at, START + at, ended_at=START + at + 0.1, error=kind, error_detail=words)


def test_latencies_of_one_request_are_the_definitions() -> None:
    found = latencies_of(answered(0.0, 0.5, 0.1, 5))
    assert found["ttft"] == [pytest.approx(500)]
    assert found["itl"] == [pytest.approx(100)] * 4
    assert found["tpot"] == [pytest.approx(100)]
    assert found["e2el"] == [pytest.approx(900)]
    assert found["normalised"] == [pytest.approx(180)]


def test_tokens_that_come_together_shorten_tpot_and_normalised_latency_alone() -> None:
    outcome = answered(0.0, 0.5, 0.1, 5)
    outcome.num_output_tokens = 9  # by usage: events held two
    found = latencies_of(outcome)
    assert found["itl"] == [pytest.approx(100)] * 4
    assert found["tpot"] == [pytest.approx(50)]
    assert found["normalised"] == [pytest.approx(100)]


def test_an_answer_of_one_token_has_no_gap() -> None:
    found = latencies_of(answered(0.0, 0.5, 0.1, 1))
    assert (found["itl"], found["tpot"]) == ([], [])


def test_normalised_latency_is_the_mean_over_requests_not_over_tokens() -> None:
    """The paper's: (0.9 / 5 + 2.0 / 100) / 2 seconds, not 2.9 / 105."""
    outcomes = [answered(0.0, 0.5, 0.1, 5), answered(0.0, 0.02, 0.02, 100)]
    report = ServeReport.of(START, outcomes, None)
    assert report.latencies["normalised"].mean == pytest.approx(1e3 * (0.9 / 5 + 2.0 / 100) / 2)


def test_failures_count_in_nothing_but_errors_and_the_share_of_goodput() -> None:
    outcomes = [
        answered(0.0, 0.5, 0.1, 5),
        answered(1.0, 0.1, 0.01, 11),
        failed(0.5, "status 429", "queue is full"),
        failed(0.6, "status 429", "other words"),
        failed(0.7, "cut stream", ""),
    ]
    limits = Goodput.parse(["ttft:200", "itl:50"])
    report = ServeReport.of(START, outcomes, limits)
    assert (report.num_requests, report.num_succeeded, report.num_good) == (5, 2, 1)
    assert report.errors == {"status 429": (2, "queue is full"), "cut stream": (1, "")}
    assert report.num_output_tokens == 16
    assert report.seconds == pytest.approx(1.2)
    assert report.offered_rate == pytest.approx(5.0)
    assert report.latencies["ttft"].count == 2
    text = "\n".join(report.lines(limits))
    assert "2 of 5 requests" in text
    assert "ERROR status 429: 2 requests; one of them: queue is full" in text
    assert "ERROR cut stream: 1 requests; one of them: no more is known" in text
    assert "20% of all (ttft <= 200, itl <= 50 ms)" in text
    assert report.to_json()["errors"]["status 429"] == {"count": 2, "example": "queue is full"}


def test_the_longest_gap_is_what_a_limit_on_itl_binds() -> None:
    outcome = answered(0.0, 0.1, 0.01, 5)
    outcome.event_times[-1] += 0.2
    report = ServeReport.of(START, [outcome], Goodput.parse(["itl:100"]))
    assert report.num_good == 0


def test_lateness_is_the_clients_own_and_waiting_for_a_slot_is_not() -> None:
    outcomes = [answered(0.1 * i, 0.1, 0.01, 3, late=0.02, slot=0.5) for i in range(10)]
    report = ServeReport.of(START, outcomes, None)
    assert report.latencies["lateness"].most == pytest.approx(20)
    assert report.latencies["slot"].mean == pytest.approx(500)
    assert any("lacks time of its own" in line for line in report.lines(None))
    on_time = ServeReport.of(START, [answered(0.0, 0.1, 0.01, 3)], None)
    assert "slot" not in on_time.latencies
    assert not any("lacks time" in line for line in on_time.lines(None))


def test_without_usage_the_report_says_that_it_counted_events() -> None:
    outcome = answered(0.0, 0.1, 0.01, 3)
    outcome.has_usage = False
    report = ServeReport.of(START, [outcome], None)
    assert report.to_json()["tokens_counted_by"] == "events"
    assert any("events were counted" in line for line in report.lines(None))


def test_a_report_of_nothing_but_errors_still_stands() -> None:
    report = ServeReport.of(START, [failed(0.0, "connection", "refused")], Goodput.parse(["ttft:1"]))
    assert report.num_succeeded == 0
    assert report.to_json()["requests_per_second"] == 0
    assert report.lines(Goodput.parse(["ttft:1"]))


def test_the_most_in_flight_counts_half_open_spans() -> None:
    assert most_at_once([(0, 2), (1, 3), (2, 4)]) == 2
    assert most_at_once([(0, 3), (1, 2), (1.5, 4)]) == 3
