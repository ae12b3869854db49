"""How fast the machine allows a load to be: bytes over the read bandwidth, operations over the peak of the unit used.

Bytes are those of the file's tensors that a step reads, each once, and of the keys and values as bfloat16, whatever a
contestant keeps. Operations run at the int8 peak for formats of up to 8 bits and at the bf16 peak for 16 bits;
attention always at the bf16 peak. A contestant that keeps KV in fewer bytes may so come above what is true of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from contestants.rows import FigureName, Load, Shape


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the machine, for all threads used."""

    read_bytes_per_second: float
    bf16_flops: float
    int8_ops: float

    def ops(self, bits: int) -> float:
        return self.bf16_flops if bits > 8 else self.int8_ops


def decode_step_seconds(shape: Shape, load: Load, weight_bytes: float, bits: int, limits: Limits) -> float:
    """One token of every stream, at the mean context of the load. The greater of the two limits.

    A shared prefix is read once for all.
    """
    own = load.num_prompt_tokens - load.num_shared_tokens + load.num_new_tokens / 2
    kv_tokens = load.num_shared_tokens + load.num_streams * own
    reading = (weight_bytes + kv_tokens * shape.kv_bytes_per_token) / limits.read_bytes_per_second
    context = load.num_streams * (load.num_prompt_tokens + load.num_new_tokens / 2)
    computing = 2 * shape.num_weights * load.num_streams / limits.ops(bits)
    return max(reading, computing + _attention_flops(shape, context) / limits.bf16_flops)


def prefill_seconds(shape: Shape, load: Load, bits: int, limits: Limits, *, is_prefix_cached: bool = False) -> float:
    """All prompts; a shared prefix is computed once, or not at all. The head runs for one token a prompt."""
    own = load.num_prompt_tokens - load.num_shared_tokens
    shared = 0 if is_prefix_cached else load.num_shared_tokens
    linear = 2 * shape.num_layer_weights * (shared + load.num_streams * own)
    linear += 2 * shape.num_head_weights * load.num_streams
    pairs = shared**2 / 2 + load.num_streams * own * (load.num_shared_tokens + own / 2)
    return linear / limits.ops(bits) + _attention_flops(shape, pairs) / limits.bf16_flops


def product_seconds(
    shape: Shape, num_sequences: int, num_tokens: int, weight_bytes: float, bits: int, limits: Limits
) -> float:
    """The matrix products of one step of so many sequences of so many tokens; the head once a sequence."""
    layers = 2 * shape.num_layer_weights * num_sequences * num_tokens
    head = 2 * shape.num_head_weights * num_sequences
    return max(weight_bytes / limits.read_bytes_per_second, (layers + head) / limits.ops(bits))


def best_figure(
    shape: Shape, load: Load, figure: FigureName, weight_bytes: float, bits: int, limits: Limits
) -> float | None:
    """The figure at the roofline, in the figure's own unit; None where no roofline says anything."""
    step = decode_step_seconds(shape, load, weight_bytes, bits, limits)
    match figure:
        case "decode":
            return load.num_streams / step
        case "prefill":
            return load.num_streams * load.num_prompt_tokens / prefill_seconds(shape, load, bits, limits)
        case "cold" | "warm":
            prefill = prefill_seconds(shape, load, bits, limits, is_prefix_cached=figure == "warm")
            return prefill + (load.num_new_tokens - 1) * step
    return None


def _attention_flops(shape: Shape, num_pairs: float) -> float:
    """Scores and the weighted sum: 2 products a pair, each of 2 operations an element of the hidden size."""
    return 4 * shape.num_layers * shape.hidden_size * num_pairs
