"""A tiny model whose KV is large: 2 MiB a block of 16 tokens in float32, so that memory tells blocks from noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.gguf_maker import tiny_tokens
from support.hf_folder import write_folder
from support.tiny_models import llama_config

KV_BYTES_PER_TOKEN = 2 * 4 * 4 * 32 * 128  # K and V, float32, layers, heads, dimensions


def kv_heavy_folder(folder: Path) -> Path:
    """4 layers of 32 KV heads of 128 dimensions over a width of 16."""
    config: dict[str, Any] = llama_config(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=128,
        vocab_size=len(tiny_tokens()),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return write_folder(folder, config=config)


def distinct_prompt(number: int, length: int) -> tuple[int, ...]:
    """Token ids; two numbers differ within the first block."""
    digits = (number // 50**place % 50 for place in range(4))
    return (*(5 + digit for digit in digits), *(5 + (number + 7 * i) % 50 for i in range(length - 4)))
