"""Rotary frequencies against the formulas' own limits, from both kinds of configuration."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.errors import ModelFileError
from octavo.models.fields import Fields
from octavo.models.rope import base_frequencies, gguf_frequencies, hf_frequencies, llama3_frequencies

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def hf(rotary_dim: int = 128, **config: Any) -> tuple[float, ...]:
    return hf_frequencies(Fields(config, "config.json"), rotary_dim)


def gguf(divisors: list[float] | None = None, **metadata: Any) -> tuple[float, ...]:
    values = {"llama." + name.replace("__", "."): value for name, value in metadata.items()}
    return gguf_frequencies(Fields(values, "GGUF", "llama."), 8, divisors)


def test_frequencies_fall_from_one_geometrically() -> None:
    assert base_frequencies(4, 10000.0) == pytest.approx((1.0, 0.01))
    assert hf(4) == base_frequencies(4, 10000.0)
    assert hf(4, rope_theta=100.0) == pytest.approx((1.0, 0.1))
    assert hf(4, rope_theta=5.0, rope_parameters={"rope_theta": 100.0, "rope_type": "default"}) == hf(4, rope_theta=100)


def test_both_spellings_of_linear_scaling_divide_every_frequency() -> None:
    expected = tuple(frequency / 4 for frequency in base_frequencies(8, 10000.0))
    assert hf(8, rope_scaling={"type": "linear", "factor": 4.0}) == expected
    assert hf(8, rope_scaling={"rope_type": "linear", "factor": 4}) == expected
    assert hf(8, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}) == expected
    assert gguf(rope__scaling__type="linear", rope__scaling__factor=4.0) == expected
    assert gguf(rope__scale_linear=4.0) == expected


def test_llama3_keeps_short_waves_stretches_long_ones_and_blends_between() -> None:
    plain = base_frequencies(128, 500000.0)
    scaled = hf(rope_theta=500000.0, rope_scaling={"rope_type": "llama3", **LLAMA3})
    assert len(scaled) == 64
    for before, after in zip(plain, scaled, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4:
            assert after == before
        elif wavelength > 8192:
            assert after == pytest.approx(before / 8)
        else:
            assert before / 8 <= after <= before
    assert {after / before for before, after in zip(plain, scaled, strict=True)} > {1.0, 0.125}
    assert list(scaled) == sorted(scaled, reverse=True)


def test_llama3_is_continuous_at_both_ends_of_the_blend() -> None:
    for turns, kept in ((1.0, 0.125), (4.0, 1.0), (2.5, 0.5625)):
        frequency = turns * 2 * math.pi / 8192
        (after,) = llama3_frequencies(
            [frequency], factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, trained_len=8192
        )
        assert after == pytest.approx(frequency * kept)


def test_gguf_divisors_divide_their_own_frequency() -> None:
    plain = base_frequencies(8, 10000.0)
    assert gguf([1.0, 2.0, 4.0, 8.0]) == tuple(f / d for f, d in zip(plain, (1, 2, 4, 8), strict=True))
    for wrong in ([1.0], [1.0, 2.0, 4.0, 0.0], [1.0, 2.0, 4.0, math.nan], [1.0, 2.0, 4.0, math.inf], [-1.0] * 4):
        with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
            gguf(wrong)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "factor is 0.0"),
        ({"rope_scaling": {"type": 3}}, "type is 3"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_theta": math.nan}, "rope_theta is nan"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor is 1.0"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": None}}, "low_freq_factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 0}}, "original_max"),
    ],
)
def test_what_is_not_known_is_refused_by_name(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFileError, match=field):
        hf(**config)


def test_an_unknown_gguf_kind_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"llama\.rope\.scaling\.type is 'yarn'"):
        gguf(rope__scaling__type="yarn")
