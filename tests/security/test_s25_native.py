"""S25: questions, tokenising and restarts raced against generation; and nothing of the server reaches into the engine.

`scripts/test_sanitize.sh` runs this file on a build with AddressSanitizer and UBSan, where it finds what it is for.
"""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

import octavo
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine, EngineRequest
from octavo.sampling_params import SamplingParams
from support.gguf_maker import tiny_tokens
from support.hf_folder import write_folder
from support.tiny_models import llama_config

pytestmark = pytest.mark.security("S25")

SERVER = Path(octavo.__file__).parent / "server"
INSIDE = (
    "octavo.core",
    "octavo.executors",
    "octavo.engine.engine",
    "octavo.engine.build",
    "octavo._native",
    "octavo.models",
)
PLAIN_DATA = {"octavo.core.protocols"}


def test_no_handler_imports_what_the_engines_thread_owns() -> None:
    for path in SERVER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                inside = any(name == each or name.startswith(each + ".") for each in INSIDE)
                assert not inside or name in PLAIN_DATA, f"{path.name} imports {name}"


def test_tokenising_and_restarts_beside_generation(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config=llama_config(vocab_size=len(tiny_tokens()), tie_word_embeddings=True))
    config = EngineConfig(
        model=str(folder), executor="cpu", num_threads=2, max_model_len=96, num_gpu_blocks_override=20
    )
    expected: list[tuple[int, ...]] | None = None
    faults: list[BaseException] = []
    for _ in range(3):  # each a whole engine: memory of the one before is gone
        engine = build_engine(config, strict=True)
        is_over = threading.Event()

        def tokenise(engine: Engine = engine, is_over: threading.Event = is_over) -> None:
            text = "한국어 🙂 text of any kind " * 50
            try:
                while not is_over.is_set():
                    ids = engine.tokenizer.encode(text)
                    engine.tokenizer.decode(ids)
                    engine.tokenizer.encode_batch([text[:9]] * 20)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=tokenise) for _ in range(2)]
        for thread in threads:
            thread.start()
        found: dict[str, list[int]] = {}
        for number in range(12):
            sampling = SamplingParams(temperature=1.0, seed=number, max_tokens=30, ignore_eos=True)
            engine.add_request(EngineRequest(f"r{number}", tuple(range(4, 20 + number)), sampling))
        while engine.has_unfinished:
            for delta in engine.step():
                found.setdefault(delta.request_id, []).extend(delta.token_ids)
            engine.stats()
            if len(found) == 3:
                engine.reset_prefix_cache()
        is_over.set()
        for thread in threads:
            thread.join()
        engine.close()
        assert not faults
        tokens = [tuple(found[f"r{number}"]) for number in range(12)]
        assert expected in (None, tokens)
        expected = tokens
