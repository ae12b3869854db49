"""The number of blocks and the context, from options, model and memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import EngineConfig
from octavo.core.kv_cache_manager import blocks_held
from octavo.engine.kv_budget import KVBudget, plan_kv_budget
from octavo.errors import ConfigError

BLOCK = 1000  # bytes


def plan(available: int, context: int = 160, windows: tuple[int | None, ...] = (None,), **options: object) -> KVBudget:
    return plan_kv_budget(
        EngineConfig.from_options(options),
        context_length=context,
        kv_bytes_per_block=BLOCK,
        available_bytes=available,
        group_windows=windows,
    )


def test_the_share_of_memory_decides_up_to_what_all_rows_can_fill() -> None:
    assert plan(100 * BLOCK, max_num_seqs=64) == KVBudget(50, 160)
    assert plan(10**9, max_num_seqs=3) == KVBudget(30, 160)


def test_the_context_is_lowered_to_what_fits_with_one_line() -> None:
    budget = plan(10 * BLOCK)
    assert (budget.num_blocks, budget.max_model_len) == (5, 80)
    assert len(budget.warnings) == 1
    assert "from 160 to 80" in budget.warnings[0]


def test_an_asked_context_may_take_more_than_the_share() -> None:
    budget = plan(12 * BLOCK, max_model_len=160)
    assert (budget.num_blocks, budget.max_model_len) == (10, 160)
    assert len(budget.warnings) == 1


@pytest.mark.parametrize("options", [{"kv_cache_memory_bytes": 20 * BLOCK}, {"num_gpu_blocks_override": 20}])
def test_more_than_the_memory_there_is_gets_a_warning(options: dict[str, int]) -> None:
    assert plan(20 * BLOCK, **options).warnings == ()
    for context in (160, 1600):
        budget = plan(20 * BLOCK - 1, context, **options)
        assert budget.num_blocks == 20
        assert f"may grow to {20 * BLOCK} bytes" in budget.warnings[-1]
        assert f"{20 * BLOCK - 1} bytes of memory are available" in budget.warnings[-1]


def test_a_clash_names_the_largest_that_fits() -> None:
    with pytest.raises(ConfigError, match="largest that fits is 112:"):
        plan(10**9, max_model_len=160, kv_cache_memory_bytes=7 * BLOCK + 1)
    with pytest.raises(ConfigError, match="largest that fits is 48:"):
        plan(10**9, max_model_len=160, num_gpu_blocks_override=3)
    assert plan(10**9, max_model_len=112, kv_cache_memory_bytes=7 * BLOCK).num_blocks == 7


def test_given_memory_is_taken_as_given() -> None:
    assert plan(0, kv_cache_memory_bytes=7 * BLOCK).max_model_len == 112
    assert plan(10**9, num_gpu_blocks_override=1000, max_num_seqs=1) == KVBudget(1000, 160)


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="made for 160"):
        plan(10**9, max_model_len=161)


def test_no_room_for_a_single_block_is_an_error_and_for_one_is_enough() -> None:
    with pytest.raises(ConfigError, match="no KV block"):
        plan(BLOCK - 1)
    with pytest.raises(ConfigError, match="no KV block"):
        plan(10**9, kv_cache_memory_bytes=BLOCK - 1)
    assert plan(BLOCK).max_model_len == 16


@given(
    st.integers(0, 300 * BLOCK),
    st.integers(1, 400),
    st.lists(st.none() | st.integers(1, 200), min_size=1, max_size=3).map(tuple),
    st.none() | st.integers(1, 400),
    st.none() | st.integers(1, 300 * BLOCK),
    st.none() | st.integers(1, 300),
)
def test_every_budget_holds_one_full_sequence(
    available: int,
    context: int,
    windows: tuple[int | None, ...],
    asked: int | None,
    memory: int | None,
    blocks: int | None,
) -> None:
    try:
        budget = plan(
            available,
            context,
            windows,
            max_num_batched_tokens=32,
            max_model_len=asked,
            kv_cache_memory_bytes=memory,
            num_gpu_blocks_override=blocks,
        )
    except ConfigError:
        return
    assert 1 <= budget.max_model_len <= context
    assert budget.num_blocks >= blocks_held(windows, budget.max_model_len, 16, 32)
    if any("lowered" in warning for warning in budget.warnings):  # it was lowered no further than need be
        assert budget.num_blocks < blocks_held(windows, budget.max_model_len + 1, 16, 32)
    assert asked in (None, budget.max_model_len)


def test_a_sliding_group_takes_what_its_window_and_a_chunk_need() -> None:
    one_sequence: dict[str, object] = {"max_num_seqs": 1, "max_num_batched_tokens": 16}
    # 10 blocks in the full group; 24 - 1 + 16 tokens touch 3 blocks and one more in each sliding group
    assert plan(10**9, windows=(None, 24, 24), **one_sequence) == KVBudget(10 + 2 * 4, 160)
    assert plan(10**9, windows=(24,), **one_sequence) == KVBudget(4, 160)
    budget = plan(0, windows=(None, 24), num_gpu_blocks_override=13, **one_sequence)
    assert (budget.num_blocks, budget.max_model_len) == (13, 144)
    assert "from 160 to 144" in budget.warnings[0]
    with pytest.raises(ConfigError, match=r"needs 14 blocks of 16 tokens.*largest that fits is 144:"):
        plan(0, windows=(None, 24), num_gpu_blocks_override=13, max_model_len=160, **one_sequence)


def test_no_block_at_all_is_told_as_that_also_where_a_context_was_asked() -> None:
    with pytest.raises(ConfigError, match="holds no KV block of 1000 bytes") as caught:
        plan(10**9, max_model_len=16, kv_cache_memory_bytes=BLOCK - 1)
    assert caught.value.param == "kv_cache_memory_bytes"


@pytest.mark.parametrize("options", [{"num_gpu_blocks_override": 10**12}, {"kv_cache_memory_bytes": 10**15}])
def test_more_than_an_address_space_holds_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="the most that can be addressed is 70368744177664 bytes") as caught:
        plan(10**9, **options)
    assert caught.value.param in options
