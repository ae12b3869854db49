"""The PagedAttention paper's figures, reached by the real scheduler and pool with nothing computed.

What is replayed, and how, stands in benchmarks/paper_replay.py; benchmarks/paper.py prints the same figures.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.benchmark_programs import load

replays: Any = load("paper_replay")

TOKEN_SHARE = 0.955
SAVING_TOLERANCE = 0.003
HIT_TOLERANCE = 0.0002

needs_traces = pytest.mark.skipif(
    not replays.TRACES.is_dir(), reason=f"needs the Mooncake traces (third-party, not copied) in {replays.TRACES}"
)


def check(seen: Any, num_steps: int) -> None:
    """It was overload, and no sequence ever held a slot more than its last block's rest."""
    assert seen.num_steps >= num_steps
    assert seen.num_preemptions > 100
    assert 0 < seen.max_waste_tokens <= replays.BLOCK_SIZE - 1


def test_nearly_all_of_the_memory_holds_tokens_at_overload() -> None:
    seen = replays.replay(replays.read_lengths("sharegpt_first_round_opt"), max_steps=3_000)
    check(seen, 3_000)
    assert seen.token_share >= TOKEN_SHARE
    assert seen.block_saving == pytest.approx(0.0)


@pytest.mark.long
def test_nearly_all_of_the_memory_holds_tokens_for_ten_thousand_requests() -> None:
    seen = replays.replay(replays.read_lengths("sharegpt_first_round_opt"))
    check(seen, 50_000)
    assert seen.token_share >= TOKEN_SHARE


@pytest.mark.parametrize("num_samples", [2, 4, 6])
def test_samples_share_the_blocks_that_their_lengths_let_them_share(num_samples: int) -> None:
    """The first third of so short a replay has its own mix of lengths: it is left out of both."""
    lengths = replays.read_lengths("alpaca_opt")[:2_000]
    seen = replays.replay(lengths, num_samples)
    check(seen, 1_000)
    assert seen.num_copies > 1_000
    direct = replays.saving_of_lengths(lengths[len(lengths) // 3 :], num_samples)
    assert seen.block_saving == pytest.approx(direct, abs=SAVING_TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("num_samples", [2, 4, 6])
def test_ten_thousand_requests_save_the_blocks_that_their_lengths_tell(num_samples: int) -> None:
    lengths = replays.read_lengths("alpaca_opt")
    seen = replays.replay(lengths, num_samples)
    check(seen, 5_000)
    assert seen.block_saving == pytest.approx(replays.saving_of_lengths(lengths, num_samples), abs=SAVING_TOLERANCE)


@needs_traces
@pytest.mark.parametrize(
    ("name", "num_blocks"),
    [
        ("synthetic", 10_000),
        pytest.param("synthetic", 1_000, marks=pytest.mark.long),
        pytest.param("synthetic", 50_000, marks=pytest.mark.long),
        ("conversation", 1_000),
        pytest.param("conversation", 10_000, marks=pytest.mark.long),
        pytest.param("conversation", 50_000, marks=pytest.mark.long),
    ],
)
def test_prefix_hits_of_a_trace_are_those_of_tail_first_release(name: str, num_blocks: int) -> None:
    found = replays.replay_prefixes(replays.read_trace(name), num_blocks)
    assert found.num_blocks > 50_000
    assert found.share == pytest.approx(replays.TRACE_HITS[name][num_blocks] / 100, abs=HIT_TOLERANCE)


def test_equal_block_ids_are_equal_tokens_and_others_share_none() -> None:
    tokens = replays.tokens_of([3, 4, 3])
    assert len(tokens) == 3 * 512
    assert tokens[:512] == tokens[1024:]
    assert not set(tokens[:512]) & set(tokens[512:1024])
    assert [replays.replay_prefixes([[1, 2], [1, 2], [1, 3], [2]], blocks).num_hits for blocks in (2, 100)] == [3, 3]
