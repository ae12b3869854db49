"""What a payload is named after: all that its bytes depend on, so that nothing else is ever taken for it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from octavo.core.prefix_key import KeyChain, namespace
from octavo.core.protocols import ExecutorInfo
from octavo.core.swap_costs import SwapCosts
from octavo.core.swapper import Swapper
from octavo.engine.block_mover import tier_identity
from support.scripted_tier import ScriptedTier

INFO = ExecutorInfo(
    name="cpu",
    isa="avx512",
    num_threads=2,
    weight_form="int4",
    weight_bytes=1000,
    kv_dtype="bfloat16",
    kv_bytes_per_block=4096,
    layout="tiles16",
    numerics_version=1,
)
OTHER: dict[str, Any] = {
    "name": "reference",
    "isa": "avx2",
    "weight_form": "bf16",
    "kv_dtype": "float32",
    "kv_bytes_per_block": 8192,
    "layout": "tiles32",
    "numerics_version": 2,
}
OF_NO_MATTER: dict[str, Any] = {"num_threads": 1, "weight_bytes": 2000}


def tier_key(info: ExecutorInfo = INFO, block_size: int = 16, fingerprint: str = "weights", group: int = 0) -> bytes:
    """Of the first block of one prompt."""
    keys = KeyChain(namespace(fingerprint, "", ""), block_size)
    keys.extend(range(64))
    costs = SwapCosts(info.kv_bytes_per_block, lambda count, before: None)
    identity = tier_identity(info, block_size)
    swapper = Swapper(ScriptedTier(), costs, identity=identity, block_bytes=info.kv_bytes_per_block)
    return swapper.tier_key(group, keys.keys[0])


@pytest.mark.parametrize("name", OTHER)
def test_a_payload_of_another_layout_type_instruction_set_or_numerics_has_another_name(name: str) -> None:
    assert tier_key(replace(INFO, **{name: OTHER[name]})) != tier_key()


@pytest.mark.parametrize("name", OF_NO_MATTER)
def test_what_changes_no_bit_of_a_payload_changes_no_name(name: str) -> None:
    assert tier_key(replace(INFO, **{name: OF_NO_MATTER[name]})) == tier_key()


def test_every_property_of_an_executor_is_one_or_the_other() -> None:
    assert {field.name for field in fields(ExecutorInfo)} == OTHER.keys() | OF_NO_MATTER.keys()


def test_another_model_block_size_or_group_has_other_names() -> None:
    names = {tier_key(), tier_key(fingerprint="other weights"), tier_key(block_size=32), tier_key(group=1)}
    assert len(names) == 4
    assert tier_key() == tier_key(), "and the same has the same"


def test_parts_cannot_flow_into_each_other() -> None:
    assert tier_key(replace(INFO, isa="avx5", layout="12tiles16")) != tier_key(
        replace(INFO, isa="avx51", layout="2tiles16")
    )
