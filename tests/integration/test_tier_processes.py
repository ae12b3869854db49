"""Several servers over one folder at once: every byte right, the bound kept, one's death nothing to the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.tiers.disk import DiskTier
from support.tier_blocks import bytes_on_disk, fetch, held, key_of
from support.tier_child import MIX_NUM_KEYS, mix_payload, start

SIZE = 2**21
NUM_OPERATIONS = 400


@pytest.mark.parametrize("with_a_kill", [False, True])
def test_processes_that_put_get_and_evict_at_random_never_see_a_wrong_byte(tmp_path: Path, with_a_kill: bool) -> None:
    children = [start("mix", tmp_path, SIZE, seed, NUM_OPERATIONS) for seed in (1, 2, 3)]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
        for child in children:
            assert child.stdin is not None
            print("go", file=child.stdin, flush=True)
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "on the way\n"
            assert bytes_on_disk(tmp_path) <= SIZE
        if with_a_kill:
            children[0].kill()
        for child in children[with_a_kill:]:
            assert child.stdout is not None
            counts = json.loads(child.stdout.readline())
            assert child.wait() == 0
            for kind, least in (("puts", 200), ("hits", 100), ("misses", 30), ("flushes", 10), ("evicted", 20)):
                assert counts[kind] >= least, counts
            assert counts["foreign_hits"] > 10, counts
    finally:
        for child in children:
            child.kill()
            child.wait()
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            child.stdout.close()
    assert bytes_on_disk(tmp_path) <= SIZE
    tier = DiskTier(str(tmp_path), SIZE)
    found = held(tier, MIX_NUM_KEYS)
    assert len(found) > 20
    assert fetch(tier, *found) == [mix_payload(n) for n in found]
    names = {file.name for file in (tmp_path / "octavo-kv-1" / "blocks").rglob("*") if file.is_file()}
    assert names == {key_of(n).hex() for n in found}
    tier.close()
