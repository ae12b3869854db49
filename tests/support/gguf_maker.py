"""Writes GGUF files byte by byte, good ones and every kind of bad one. Tests only.

`GGUFMaker` lays the parts out as the format says; each part can be replaced by hostile bytes. `tiny_llama` is the
smallest whole model: one layer, a byte-level vocabulary, a chat template.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from octavo.loading.byte_level import BYTE_ORDER

VALUE_TYPES = {
    "UINT8": (0, "<B"), "INT8": (1, "<b"), "UINT16": (2, "<H"), "INT16": (3, "<h"), "UINT32": (4, "<I"),
    "INT32": (5, "<i"), "FLOAT32": (6, "<f"), "BOOL": (7, "<B"), "UINT64": (10, "<Q"), "INT64": (11, "<q"),
    "FLOAT64": (12, "<d"),
}  # fmt: skip
TENSOR_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q4_K": (256, 144),
    "Q6_K": (256, 210),
}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(kind: str, content: object) -> bytes:
    """Type number and value; kind is "UINT32", "STRING", "ARRAY[INT32]" ..."""
    if kind.startswith("ARRAY["):
        element = kind[6:-1]
        items = list(content)  # type: ignore[call-overload]
        number = 8 if element == "STRING" else VALUE_TYPES[element][0]
        packed = b"".join(string(i) if element == "STRING" else struct.pack(VALUE_TYPES[element][1], i) for i in items)
        return struct.pack("<IIQ", 9, number, len(items)) + packed
    if kind == "STRING":
        assert isinstance(content, str | bytes)
        return struct.pack("<I", 8) + string(content)
    number, layout = VALUE_TYPES[kind]
    return struct.pack("<I", number) + struct.pack(layout, content)


@dataclass
class Tensor:
    name: str | bytes
    shape: tuple[int, ...]  # row-major
    tensor_type: str | int = "F32"
    data: bytes | None = None  # None: zeros of the right size
    offset: int | None = None  # None: the next aligned one
    dims: tuple[int, ...] | None = None  # as written; None: the shape reversed
    num_dims: int | None = None

    @property
    def num_bytes(self) -> int:
        elements, size = BLOCKS.get(str(self.tensor_type), (1, 4))
        return int(np.prod(self.shape, dtype=object)) // elements * size


@dataclass
class GGUFMaker:
    keys: list[tuple[str | bytes, bytes]] = field(default_factory=list)  # name, packed value
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    num_keys: int | None = None
    num_tensors: int | None = None
    alignment: int = 32
    tail: bytes = b""  # after the last tensor

    def key(self, name: str | bytes, kind: str, content: object) -> GGUFMaker:
        self.keys.append((name, value(kind, content)))
        return self

    def raw_key(self, name: str | bytes, packed: bytes) -> GGUFMaker:
        self.keys.append((name, packed))
        return self

    def tensor(self, *args: object, **kwargs: object) -> GGUFMaker:
        self.tensors.append(Tensor(*args, **kwargs))  # type: ignore[arg-type]
        return self

    def replace_key(self, name: str, kind: str, content: object) -> GGUFMaker:
        self.keys = [(key, packed) for key, packed in self.keys if key != name]
        return self.key(name, kind, content)

    def bytes(self) -> bytes:
        out = self.magic + struct.pack("<I", self.version)
        out += struct.pack("<Q", len(self.tensors) if self.num_tensors is None else self.num_tensors)
        out += struct.pack("<Q", len(self.keys) if self.num_keys is None else self.num_keys)
        for name, packed in self.keys:
            out += string(name) + packed
        data = b""
        for tensor in self.tensors:
            offset = len(data) if tensor.offset is None else tensor.offset
            dims = tuple(reversed(tensor.shape)) if tensor.dims is None else tensor.dims
            out += string(tensor.name) + struct.pack("<I", len(dims) if tensor.num_dims is None else tensor.num_dims)
            out += b"".join(struct.pack("<Q", dim) for dim in dims)
            number = tensor.tensor_type if isinstance(tensor.tensor_type, int) else TENSOR_TYPES[tensor.tensor_type]
            out += struct.pack("<IQ", number, offset)
            if tensor.offset is None:
                data += bytes(tensor.num_bytes) if tensor.data is None else tensor.data
                data += bytes(-len(data) % self.alignment)
        return out + bytes(-len(out) % self.alignment) + data + self.tail

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path


TINY_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TINY_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w")
TINY_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_tokens() -> list[str]:
    return [*TINY_SPECIAL, *BYTE_ORDER, *(merge.replace(" ", "") for merge in TINY_MERGES)]


def tiny_vocabulary(pre: str | None = "gpt-2") -> GGUFMaker:
    """Keys of a byte-level vocabulary: three control tokens, 256 bytes, five merges."""
    tokens = tiny_tokens()
    maker = GGUFMaker()
    maker.key("tokenizer.ggml.model", "STRING", "gpt2")
    if pre is not None:
        maker.key("tokenizer.ggml.pre", "STRING", pre)
    maker.key("tokenizer.ggml.tokens", "ARRAY[STRING]", tokens)
    maker.key(
        "tokenizer.ggml.token_type", "ARRAY[INT32]", [3] * len(TINY_SPECIAL) + [1] * (len(tokens) - len(TINY_SPECIAL))
    )
    maker.key("tokenizer.ggml.merges", "ARRAY[STRING]", TINY_MERGES)
    maker.key("tokenizer.ggml.bos_token_id", "UINT32", 1)
    maker.key("tokenizer.ggml.eos_token_id", "UINT32", 2)
    return maker


def tiny_llama(seed: int = 0, width: int = 8, num_heads: int = 2, ffn_width: int = 16) -> GGUFMaker:
    """One layer, tied head, float32; q and k rows as a converter interleaves them."""
    rng = np.random.default_rng(seed)
    maker = tiny_vocabulary()
    maker.key("general.architecture", "STRING", "llama")
    maker.key("general.name", "STRING", "tiny")
    maker.key("tokenizer.chat_template", "STRING", TINY_TEMPLATE)
    for name, kind, content in (
        ("block_count", "UINT32", 1),
        ("context_length", "UINT32", 64),
        ("embedding_length", "UINT32", width),
        ("feed_forward_length", "UINT32", ffn_width),
        ("attention.head_count", "UINT32", num_heads),
        ("attention.head_count_kv", "UINT32", num_heads),
        ("attention.layer_norm_rms_epsilon", "FLOAT32", 1e-5),
        ("rope.freq_base", "FLOAT32", 10000.0),
    ):
        maker.key(f"llama.{name}", kind, content)
    shapes = {
        "token_embd.weight": (len(tiny_tokens()), width),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_q.weight": (width, width),
        "blk.0.attn_k.weight": (width, width),
        "blk.0.attn_v.weight": (width, width),
        "blk.0.attn_output.weight": (width, width),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (ffn_width, width),
        "blk.0.ffn_up.weight": (ffn_width, width),
        "blk.0.ffn_down.weight": (width, ffn_width),
        "output_norm.weight": (width,),
    }
    for name, shape in shapes.items():
        maker.tensor(name, shape, "F32", rng.standard_normal(shape).astype("<f4").tobytes())
    return maker
