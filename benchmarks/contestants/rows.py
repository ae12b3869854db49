"""The rows of the comparison: which work, which figure of it, which formats meet, and the bar. Plain data.

A `Load` is measured once a repetition; several rows may read figures of it. A row that names a number of bits compares
formats of that size alone; one that names none takes the best of every contestant, whatever its format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

FigureName = Literal["prefill", "decode", "cold", "warm", "ready", "first_answer", "peak_memory"]
LESS_IS_BETTER: frozenset[FigureName] = frozenset({"cold", "warm", "ready", "first_answer", "peak_memory"})


@dataclass(frozen=True, slots=True)
class Shape:
    """What the roofline needs to know of a model. Heads and layers are all alike; the embedding is also the head."""

    num_layers: int
    hidden_size: int
    kv_size: int  # of keys of one token and layer: KV heads x head size
    num_layer_weights: int  # of all linear layers of all layers
    num_head_weights: int  # of the tied embedding and head

    @property
    def num_weights(self) -> int:
        return self.num_layer_weights + self.num_head_weights

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values as bfloat16."""
        return self.num_layers * 2 * self.kv_size * 2


SHAPES = {
    "smollm2": Shape(30, 576, 192, 30 * (576 * (2 * 576 + 2 * 192) + 3 * 576 * 1536), 49_152 * 576),
    "1b": Shape(16, 2048, 512, 16 * (2048 * (2 * 2048 + 2 * 512) + 3 * 2048 * 8192), 49_152 * 2048),
}


@dataclass(frozen=True, slots=True)
class Load:
    """`num_streams` requests at once, the first `num_shared_tokens` of each the same; greedy, EOS ignored.

    "start" is a fresh process: seconds until it is ready and until its first answer, then the load, then its peak.
    """

    num_streams: int
    num_prompt_tokens: int
    num_new_tokens: int
    num_shared_tokens: int = 0
    kind: Literal["run", "shared", "start"] = "run"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.num_streams}x{self.num_prompt_tokens}+{self.num_new_tokens}"

    def request(self, seed: str, prefix_seed: str = "") -> dict[str, object]:
        """As a worker reads it."""
        return {
            "num_streams": self.num_streams,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_shared_tokens": self.num_shared_tokens,
            "num_new_tokens": self.num_new_tokens,
            "seed": seed,
            "prefix_seed": prefix_seed,
        }


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    model: str  # a key of SHAPES
    load: Load
    figure: FigureName
    bits: int | None = None  # the class of formats that meet; None: all
    least_ratio: float | None = None  # of a rate, to the best peer
    most_ratio: float | None = None  # of seconds, to the best peer
    most: float | None = None  # of the figure itself, where no peer matters
    least_share: float | None = None  # of the roofline
    share_of: str = ""  # the format that must reach the share
    ours: tuple[str, ...] = ()  # formats of octavo that count; (): all of the class

    @property
    def group(self) -> str:
        """Rows of one group are measured in the same rounds."""
        return f"{self.model} {self.bits or 'any'} {self.load.key}"

    def is_in_class(self, bits: int) -> bool:
        return self.bits is None or bits == self.bits

    def better(self, values: Iterable[float]) -> float:
        return min(values) if self.figure in LESS_IS_BETTER else max(values)


ONE, LONG = Load(1, 128, 64), Load(1, 2048, 8)
SIXTEEN, SIXTY_FOUR, EIGHT_LONG = Load(16, 128, 128), Load(64, 128, 128), Load(8, 2048, 32)
SHARED = Load(32, 1024 + 32, 32, 1024, "shared")
START = Load(1, 16, 2, kind="start")
START_64 = Load(64, 128, 128, kind="start")
MOST_MEMORY = 0.6e9 + 64 * 256 * SHAPES["smollm2"].kv_bytes_per_token  # and the KV in use


def _one_b(
    bits: int, name: str, bars: tuple[float, float, float | None, float | None], w8a8: tuple[str, ...]
) -> list[Row]:
    """bars: decode, prefill, 16 streams, 64 streams."""
    one, prefill, sixteen, sixty_four = bars
    rows = [
        Row(f"1B, 1 stream, {name}: decode", "1b", ONE, "decode", bits, one,
            least_share=0.88 if bits == 4 else None, share_of="Q4_0" if bits == 4 else ""),
        Row(f"1B, prefill of 128, {name}", "1b", ONE, "prefill", bits, prefill, ours=w8a8),
        Row(f"1B, prefill of 2,048, {name}", "1b", LONG, "prefill", bits, prefill, ours=w8a8),
    ]  # fmt: skip
    if sixteen is not None:
        rows.append(Row(f"1B, 16 streams, {name}: decode", "1b", SIXTEEN, "decode", bits, sixteen))
    if sixty_four is not None:
        rows.append(Row(f"1B, 64 streams, {name}: decode", "1b", SIXTY_FOUR, "decode", bits, sixty_four))
    return rows


ROWS: tuple[Row, ...] = (
    Row("SmolLM2, 1 stream: decode", "smollm2", ONE, "decode", None, 1.9, least_share=0.8, share_of="Q4_1"),
    Row("SmolLM2, prefill of 128", "smollm2", ONE, "prefill", None, 1.2, ours=("w8a8",)),
    Row("SmolLM2, prefill of 2,048", "smollm2", LONG, "prefill", None, 1.15, ours=("w8a8",)),
    Row("SmolLM2, 16 streams: decode", "smollm2", SIXTEEN, "decode", None, 2.0),
    Row("SmolLM2, 64 streams: decode", "smollm2", SIXTY_FOUR, "decode", None, 1.6),
    Row("SmolLM2, 8 streams at 2,048: decode", "smollm2", EIGHT_LONG, "decode", None, 2.5),
    Row("SmolLM2, 32 sharing 1,024: cold", "smollm2", SHARED, "cold", None, most_ratio=0.5),
    Row("SmolLM2, 32 sharing 1,024: warm", "smollm2", SHARED, "warm", None, most_ratio=0.5),
    *_one_b(4, "4-bit", (1.05, 1.1, 1.5, 1.3), ()),
    *_one_b(8, "8-bit", (1.15, 1.0, 1.4, 1.25), ("w8a8",)),
    *_one_b(16, "bf16", (1.0, 0.95, None, None), ()),
    Row("SmolLM2, ready to serve", "smollm2", START_64, "ready", None, most=1.0),
    Row("SmolLM2, first answer after the start", "smollm2", START_64, "first_answer", None, most=1.5),
    Row("SmolLM2, peak memory of 64 streams", "smollm2", START_64, "peak_memory", None, most=MOST_MEMORY),
    Row("1B, ready to serve, 4-bit", "1b", START, "ready", 4, most=2.0),
    Row("1B, first answer after the start, 4-bit", "1b", START, "first_answer", 4, most=2.5),
)  # fmt: skip


def chosen(words: Sequence[str]) -> list[Row]:
    """Rows whose name holds one of the words, in the table's order."""
    return [row for row in ROWS if any(part in row.name for part in words)]
