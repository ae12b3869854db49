"""EngineConfig: every bound, misspelt names, and what the environment says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.config import (
    EngineConfig,
    environment_admin_api_key,
    environment_api_key,
    forced_isa,
    octavo_home,
    parse_client_weights,
)
from octavo.errors import ConfigError

WHOLE = ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_queue")
WHOLE_OR_NONE = ("max_model_len", "max_queue_tokens", "num_gpu_blocks_override", "kv_cache_memory_bytes", "num_threads")


@pytest.mark.parametrize("name", [*WHOLE, *WHOLE_OR_NONE])
@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True])
def test_a_count_is_a_whole_number_of_at_least_one(name: str, value: Any) -> None:
    assert getattr(EngineConfig(**{name: 1}), name) == 1
    with pytest.raises(ConfigError, match=name) as caught:
        EngineConfig(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "most"),
    [("block_size", 2**16), ("max_num_seqs", 2**16), ("max_num_batched_tokens", 2**20), ("num_threads", 1024)],
)
def test_what_costs_at_the_start_has_an_upper_bound(name: str, most: int) -> None:
    assert getattr(EngineConfig(**{name: most}), name) == most
    with pytest.raises(ConfigError, match=f"{name} is {most + 1}; it must be at most {most}"):
        EngineConfig(**{name: most + 1})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("gpu_memory_utilization", (0.001, 1, 1.0), (0.0, -0.5, 1.1, float("nan"), float("inf"), "half", True, None)),
        ("watermark", (0, 0.0, 0.99), (-0.1, 1.0, float("nan"), "0", None)),
        ("seed", (0, -1, 2**63), (1.5, "1", None)),
        ("executor", ("auto", "cpu", "reference", "fake"), ("gpu", "", None)),
        ("dtype", ("auto", "float32", "bfloat16"), ("float16", None)),
        ("kv_cache_dtype", ("auto", "bfloat16", "float32", "int8"), ("int4", "fp8", None)),
        ("kv_tier_policy", ("auto", "swap", "recompute"), ("both", None)),
        ("enable_prefix_caching", (True, False), (1, "no", None)),
        ("model", ("smollm2",), ("", None, 5)),
        ("scheduling_policy", ("fcfs", "priority", "fair"), ("fifo", None)),
        ("preemption_policy", ("newest", "lowest-priority", "least-recompute"), ("oldest", None)),
        ("target_itl_ms", (None, 0.5, 50, 1e6), (0, -1.0, 1e7, float("nan"), "50", True)),
    ],
)
def test_the_other_options_have_bounds_too(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        assert getattr(EngineConfig(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(ConfigError, match=name) as caught:
            EngineConfig(**{name: value})
        assert caught.value.param == name, value


def test_tiers_are_read_on_construction() -> None:
    assert EngineConfig(kv_tiers=("ram:1GiB", "disk:/x,1TiB")).kv_tiers == ("ram:1GiB", "disk:/x,1TiB")
    assert EngineConfig.from_options({"kv_tiers": ["ram:1GiB"]}).kv_tiers == ("ram:1GiB",)
    for bad in ("ram:1GiB", ("ram:1",), (1,), ("disk:/x,1GiB", "ram:1GiB"), None):
        with pytest.raises(ConfigError, match="kv_tier") as caught:
            EngineConfig(kv_tiers=bad)  # type: ignore[arg-type]
        assert caught.value.param == "kv_tier", bad


def test_a_tier_needs_the_prefix_cache() -> None:
    assert not EngineConfig(enable_prefix_caching=False).kv_tiers
    with pytest.raises(ConfigError, match="kv_tier needs the prefix cache") as caught:
        EngineConfig(kv_tiers=("ram:1GiB",), enable_prefix_caching=False)
    assert caught.value.param == "kv_tier"


def test_client_weights_are_read_on_construction_and_belong_to_the_fair_policy() -> None:
    weights = ("batch=0.5", "a=b=2")
    assert parse_client_weights(weights) == {"batch": 0.5, "a=b": 2.0}
    assert EngineConfig(scheduling_policy="fair", client_weights=weights).client_weights == weights
    listed = EngineConfig.from_options({"scheduling_policy": "fair", "client_weights": ["a=1"]})
    assert listed.client_weights == ("a=1",)
    for bad in (
        "a=1",
        ("a",),
        ("=1",),
        ("a=0",),
        ("a=-1",),
        ("a=nan",),
        ("a=inf",),
        ("a=x",),
        ("a=1", "a=2"),
        (1,),
        None,
    ):
        with pytest.raises(ConfigError, match="client_weight") as caught:
            EngineConfig(scheduling_policy="fair", client_weights=bad)  # type: ignore[arg-type]
        assert caught.value.param == "client_weight", bad
    with pytest.raises(ConfigError, match="--scheduling-policy fair"):
        EngineConfig(client_weights=("a=1",))


def test_a_misspelt_name_is_an_error_that_names_the_nearest() -> None:
    assert EngineConfig.from_options({"max_num_seqs": 3}).max_num_seqs == 3
    with pytest.raises(ConfigError, match="'max_num_seq'; did you mean max_num_seqs"):
        EngineConfig.from_options({"max_num_seq": 3})
    with pytest.raises(ConfigError, match=r"there is no option 'qqqq'$"):
        EngineConfig.from_options({"qqqq": 3})


def test_the_environment_moves_the_home_forces_the_isa_and_holds_the_key() -> None:
    assert octavo_home({"OCTAVO_HOME": "/x/y"}) == Path("/x/y")
    assert octavo_home({"OCTAVO_HOME": ""}) == octavo_home({}) == Path.home() / ".cache" / "octavo"
    assert (forced_isa({"OCTAVO_ISA": "avx2"}), forced_isa({"OCTAVO_ISA": ""}), forced_isa({})) == ("avx2", None, None)
    assert (environment_api_key({"OCTAVO_API_KEY": "k"}), environment_api_key({})) == ("k", None)


def test_a_key_that_got_lost_on_its_way_opens_no_server() -> None:
    with pytest.raises(ConfigError, match="OCTAVO_API_KEY is set, but empty"):
        environment_api_key({"OCTAVO_API_KEY": ""})
    with pytest.raises(ConfigError, match="OCTAVO_ADMIN_API_KEY is set, but empty"):
        environment_admin_api_key({"OCTAVO_ADMIN_API_KEY": ""})
