"""Weights are in memory once, in their packed form: what loading takes beyond them, at its worst moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli_runner import environment
from support.gguf_maker import GGUFMaker, tiny_llama

MOST = 1.15  # of the packed size; pages of the mapped file do not count
CHILD = Path(__file__).resolve().parents[1] / "support" / "load_child.py"
WIDTH, FFN_WIDTH = 2048, 16_384


def large_llama(tensor_type: str) -> GGUFMaker:
    """One layer of 117 million weights, all zero."""
    maker = tiny_llama()
    maker.replace_key("llama.embedding_length", "UINT32", WIDTH)
    maker.replace_key("llama.feed_forward_length", "UINT32", FFN_WIDTH)
    maker.replace_key("llama.attention.head_count", "UINT32", 32)
    maker.replace_key("llama.attention.head_count_kv", "UINT32", 32)
    for tensor in maker.tensors:
        tensor.shape = tuple({8: WIDTH, 16: FFN_WIDTH}.get(size, size) for size in tensor.shape)
        tensor.tensor_type, tensor.data = (tensor_type if len(tensor.shape) == 2 else "F32"), None
    return maker


@pytest.mark.parametrize(
    ("tensor_type", "quantization", "form"), [("Q8_0", None, "int8"), ("Q4_1", None, "int4"), ("BF16", "w8a8", "w8a8")]
)
def test_loading_takes_the_packed_size_and_little_more(
    tensor_type: str, quantization: str | None, form: str, tmp_path: Path
) -> None:
    path = large_llama(tensor_type).write(tmp_path / "large.gguf")
    command = [sys.executable, str(CHILD), str(path), *filter(None, [quantization])]
    variables = environment(OCTAVO_HOME=str(tmp_path / "home"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["form"] == form
    assert found["packed"] > 60e6
    assert found["packed"] < found["peak"] <= MOST * found["packed"]
