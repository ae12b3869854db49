"""The example of docs/adding_a_model.md runs as printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from octavo.errors import ModelFileError
from octavo.executors.reference import ReferenceExecutor
from octavo.models.registry import ModelFamily
from support.drive import generate
from support.sources import dict_source, random_parameters

PAGE = Path(__file__).parents[3] / "docs/adding_a_model.md"


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> ModelFamily:
    source, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folio = ModuleType("folio_example")
    monkeypatch.setitem(sys.modules, "folio_example", folio)  # dataclasses look their module up
    exec(compile(source, str(PAGE), "exec"), folio.__dict__)
    result = eval(line, {"ModelFamily": ModelFamily, "folio": folio})
    assert isinstance(result, ModelFamily)
    return result


def test_the_example_answers_in_every_chunk_alike(family: ModelFamily) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    config = family.hf_config({**sizes, "vocab_size": 50, "max_position_embeddings": 64})
    program = family.trace(config)
    assert set(family.hf_names(config)) == set(family.gguf_names(config)) == set(program.parameters)
    results = []
    for chunk in (None, 3):
        executor = ReferenceExecutor(
            program=program,
            source=dict_source(random_parameters(program)),
            num_blocks=8,
            block_size=16,
            max_num_seqs=1,
            max_model_len=64,
        )
        results += generate(executor, [list(range(20))], max_tokens=5, block_size=16, num_blocks=8, chunk=chunk)
    assert results[0].token_ids == results[1].token_ids


def test_the_example_reads_gguf_metadata_and_refuses_what_it_does_not_know(family: ModelFamily) -> None:
    metadata = {
        "folio.block_count": 1,
        "folio.embedding_length": 32,
        "folio.attention.head_count": 4,
        "folio.feed_forward_length": 48,
        "folio.vocab_size": 50,
        "folio.context_length": 64,
    }
    assert family.trace(family.gguf_config(metadata)).num_layers == 1
    with pytest.raises(ModelFileError, match=r"folio\.attention\.head_count"):
        family.gguf_config(metadata | {"folio.attention.head_count": 5})
    with pytest.raises(ModelFileError, match="hidden_act"):
        family.hf_config({"hidden_act": "relu"})
