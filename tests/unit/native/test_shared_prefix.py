"""Sequences that begin with the same blocks: served together, the same bits as each alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from support.attention import Paged, make_paged

ISAS = _native.available_isas()
PART = 256  # keys: prefixes are shared in whole parts

Range = tuple[int, int, int]  # sequence, first position, end position


def forked(isa: str, lengths: list[int], parents: list[tuple[int, int] | None], **shape: Any) -> Paged:
    """Sequences of which sequence s holds the first `tokens` tokens of `parent` in its blocks: parents[s]."""
    sizes: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 64, "dtype": "bfloat16", **shape}
    paged = make_paged(isa, lengths, **sizes)
    block_size = sizes.get("block_size", 16)
    for s, origin in enumerate(parents):
        if origin is not None:
            parent, tokens = origin
            assert tokens % block_size == 0
            paged.tables[s, : tokens // block_size] = paged.tables[parent, : tokens // block_size]
    return paged


def both(paged: Paged, ranges: list[Range], **options: Any) -> tuple[npt.NDArray[np.float32], int]:
    """The output, equal to that of the path without sharing, and the queries that were served together."""
    num_heads = options.pop("num_heads", 6)
    apart = paged.attend(ranges, num_heads, share_prefixes=False, **options)
    assert paged.shared_queries == 0
    together = paged.attend(ranges, num_heads, **options)
    assert np.array_equal(together, apart)
    return together, paged.shared_queries


def decodes(lengths: list[int]) -> list[Range]:
    return [(s, n - 1, n) for s, n in enumerate(lengths)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 7, 64])
def test_a_shared_prefix_changes_no_bit(isa: str, dtype: str, num_threads: int) -> None:
    lengths = [600, 513, 700, 512, 1000]
    paged = forked(isa, lengths, [None, (0, 512), (0, 592), (0, 512), None], dtype=dtype)
    _, shared = both(paged, decodes(lengths), num_threads=num_threads)
    assert shared == 4  # the last shares nothing


@pytest.mark.parametrize("isa", ISAS)
def test_a_tree_of_prefixes_is_shared_at_every_depth(isa: str) -> None:
    """All share one part; two halves of them share two and three more; one leaves after one."""
    lengths = [1100, 1200, 1100, 1300, 300]
    paged = forked(isa, lengths, [None, (0, 1024), (0, 256), (2, 768), (0, 256)])
    paged.tables[3, : 256 // 16] = paged.tables[0, : 256 // 16]
    for num_threads in (1, 2, 5):
        _, shared = both(paged, decodes(lengths), num_threads=num_threads)
        assert shared == 5
    alone = [paged.attend([one], 6) for one in decodes(lengths)]
    assert np.array_equal(paged.attend(decodes(lengths), 6), np.concatenate(alone))


@pytest.mark.parametrize("isa", ISAS)
def test_more_members_than_one_piece_holds(isa: str) -> None:
    lengths = [300 + s for s in range(40)]
    paged = forked(isa, lengths, [None, *[(0, 288)] * 39])
    _, shared = both(paged, decodes(lengths), num_threads=2)
    assert shared == 40


@pytest.mark.parametrize("isa", ISAS)
def test_a_part_that_is_not_whole_or_differs_in_one_block_is_not_shared(isa: str) -> None:
    lengths = [300, 300, 255, 255]
    paged = forked(isa, lengths, [None, (0, 240), None, (2, 240)])
    _, shared = both(paged, decodes(lengths))
    assert shared == 0


@pytest.mark.parametrize("isa", ISAS)
def test_a_prefix_that_ends_with_the_sequence_is_shared_whole(isa: str) -> None:
    lengths = [PART, 2 * PART, 2 * PART + 1]
    paged = forked(isa, lengths, [None, (0, PART), (1, 2 * PART)])
    paged.tables[2, : PART // 16] = paged.tables[0, : PART // 16]
    _, shared = both(paged, decodes(lengths), num_threads=3)
    assert shared == 3


@pytest.mark.parametrize("isa", ISAS)
def test_chunks_beside_decodes_keep_their_bits(isa: str) -> None:
    """A long chunk and a few queries at once over the same prefix; only queries that see all of a part share it."""
    lengths = [700, 640, 560, 600]
    paged = forked(isa, lengths, [None, (0, 512), (0, 512), (0, 256)])
    ranges = [(0, 699, 700), (1, 500, 640), (2, 550, 560), (3, 250, 260)]
    _, shared = both(paged, ranges, num_threads=2)
    assert shared == 11  # the first's query and the third's ten


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("window", "expected"), [(100, 0), (620, 2), (4096, 3)])
def test_windows_are_shared_only_where_they_hide_nothing(isa: str, window: int, expected: int) -> None:
    lengths = [600, 620, 640]
    paged = forked(isa, lengths, [None, (0, 512), (0, 512)])
    _, shared = both(paged, decodes(lengths), window=window)
    assert shared == expected


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block_size", [16, 32, 256, 512])
def test_any_block_size_shares(isa: str, block_size: int) -> None:
    lengths = [1100, 1030]
    paged = forked(isa, lengths, [None, (0, 1024)], block_size=block_size)
    _, shared = both(paged, decodes(lengths), softcap=3.0, sinks=np.linspace(-2, 2, 6, dtype=np.float32))
    assert shared == 2


@pytest.mark.parametrize("isa", ISAS)
def test_nan_in_one_member_stays_in_it(isa: str) -> None:
    lengths = [300, 300]
    paged = forked(isa, lengths, [None, (0, 256)])
    before = paged.attend(decodes(lengths), 6)
    paged.q[0][299] = np.nan
    out = paged.attend(decodes(lengths), 6)
    assert np.isnan(out[0]).all()
    assert np.array_equal(out[1], before[1])
