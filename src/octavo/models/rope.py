"""Rotary frequencies with the scalings checkpoints ask for: none, linear, llama3. Any other kind is refused.

Frequencies are float64 and become part of the program, so that every executor turns by the same angles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.errors import ModelFileError
from octavo.models.fields import MAX_CONTEXT, Fields

DEFAULT_BASE = 10000.0
MAX_BASE = 1e12
MAX_FACTOR = 1e6
KNOWN_TYPES = ("default", "linear", "llama3")


def base_frequencies(rotary_dim: int, base: float) -> tuple[float, ...]:
    """base^(-2i / rotary_dim) for i in [0, rotary_dim / 2): radians a position (RoFormer, section 3.2.2)."""
    return tuple(base ** (-2.0 * i / rotary_dim) for i in range(rotary_dim // 2))


def linear_frequencies(frequencies: Sequence[float], factor: float) -> tuple[float, ...]:
    """Positions divided by `factor` (position interpolation)."""
    return tuple(frequency / factor for frequency in frequencies)


def llama3_frequencies(
    frequencies: Sequence[float], *, factor: float, low_freq_factor: float, high_freq_factor: float, trained_len: int
) -> tuple[float, ...]:
    """Llama 3.1's scaling: wavelengths (positions a turn) up to trained_len / high_freq_factor stay, those beyond
    trained_len / low_freq_factor are stretched by `factor`, those between blend linearly in turns a context."""
    scaled = []
    for frequency in frequencies:
        turns = trained_len * frequency / (2.0 * math.pi)  # in the length the model was first trained for
        kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        kept = min(max(kept, 0.0), 1.0)
        scaled.append(frequency * (kept + (1.0 - kept) / factor))
    return tuple(scaled)


def hf_frequencies(config: Fields, rotary_dim: int) -> tuple[float, ...]:
    """From a Hugging Face config: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Raises ModelFileError for an unknown kind or a number out of bounds.
    """
    parameters = config.nested("rope_parameters") or config.nested("rope_scaling") or Fields({}, config.source)
    with_base = parameters if parameters.has("rope_theta") else config
    frequencies = base_frequencies(rotary_dim, with_base.real("rope_theta", 1.0, MAX_BASE, DEFAULT_BASE))
    partial = parameters if parameters.has("partial_rotary_factor") else config
    if partial.real("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
        raise ModelFileError(f"{partial.source}: partial_rotary_factor is not 1; heads that turn in part are not known")
    kind = parameters.text("type" if not parameters.has("rope_type") else "rope_type", "default")
    if kind == "default":
        return frequencies
    if kind not in KNOWN_TYPES:
        raise parameters.refusal("rope_type", kind, f"known are {', '.join(KNOWN_TYPES)}")
    factor = parameters.real("factor", 1.0, MAX_FACTOR)
    if kind == "linear":
        return linear_frequencies(frequencies, factor)
    low = parameters.real("low_freq_factor", 1e-3, 1e3)
    high = parameters.real("high_freq_factor", 1e-3, 1e3)
    if low >= high:
        raise parameters.refusal("high_freq_factor", high, f"it must be above low_freq_factor ({low:g})")
    trained = parameters.whole("original_max_position_embeddings", 1, MAX_CONTEXT)
    return llama3_frequencies(
        frequencies, factor=factor, low_freq_factor=low, high_freq_factor=high, trained_len=trained
    )


def gguf_frequencies(metadata: Fields, rotary_dim: int, divisors: Sequence[float] | None) -> tuple[float, ...]:
    """From GGUF metadata (`rope.freq_base`, `rope.scaling.*`); `divisors` are the values of the file's
    `rope_freqs.weight` where it has one (how converters store llama3 scaling): one a pair.

    Raises ModelFileError for an unknown kind, a number out of bounds or divisors of the wrong count.
    """
    frequencies = base_frequencies(rotary_dim, metadata.real("rope.freq_base", 1.0, MAX_BASE, DEFAULT_BASE))
    kind = metadata.text("rope.scaling.type", "linear" if metadata.has("rope.scale_linear") else "none")
    if kind == "linear":
        name = "rope.scaling.factor" if metadata.has("rope.scaling.factor") else "rope.scale_linear"
        frequencies = linear_frequencies(frequencies, metadata.real(name, 1.0, MAX_FACTOR))
    elif kind != "none":
        raise metadata.refusal("rope.scaling.type", kind, "known are none, linear")
    if divisors is None:
        return frequencies
    if len(divisors) != len(frequencies):
        raise ModelFileError(
            f"{metadata.source}: rope_freqs.weight has {len(divisors)} entries, {len(frequencies)} are needed"
        )
    if not all(math.isfinite(divisor) and 0.0 < divisor <= MAX_FACTOR for divisor in divisors):
        raise ModelFileError(f"{metadata.source}: rope_freqs.weight holds a value that is not above 0 and finite")
    return tuple(frequency / divisor for frequency, divisor in zip(frequencies, divisors, strict=True))
