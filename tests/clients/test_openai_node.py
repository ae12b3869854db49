"""The openai package for Node, run by openai_client.mjs, against a real `octavo serve`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.clients import KEY, needs_route
from support.server_process import ServerProcess, until

HERE = Path(__file__).parent
NODE = shutil.which("node")
MODULES = Path(os.environ.get("OCTAVO_NODE_MODULES", HERE.parents[1] / ".venv-clients" / "node_modules"))
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(NODE is None, reason="there is no node: install the Debian packages nodejs and npm"),
    pytest.mark.skipif(not (MODULES / "openai").is_dir(), reason="npm could not install the packages openai and zod"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script beside the packages it imports, where Node looks for them."""
    made = tmp_path_factory.mktemp("node")
    (made / "node_modules").symlink_to(MODULES)
    shutil.copy(HERE / "openai_client.mjs", made)
    return made


def run(folder: Path, server: ServerProcess, name: str) -> Any:
    environment = dict(os.environ, BASE_URL=f"{server.url}/v1", API_KEY=KEY)
    done = subprocess.run(
        [str(NODE), "openai_client.mjs", name], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_models_are_listed_and_retrieved(folder: Path, server: ServerProcess) -> None:
    assert run(folder, server, "models") == {"ids": ["m"], "one": "m"}


def test_a_stream_joins_to_the_whole_answer_with_usage_last(folder: Path, server: ServerProcess) -> None:
    whole, chunks = run(folder, server, "chat"), run(folder, server, "stream")
    assert whole["choices"][0]["message"]["content"]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == (
        [],
        whole["usage"]["completion_tokens"],
    )


def test_the_clients_own_stream_helper_accumulates_the_same(folder: Path, server: ServerProcess) -> None:
    whole, found = run(folder, server, "chat"), run(folder, server, "helper")
    assert found["final"]["choices"][0]["message"]["content"] == whole["choices"][0]["message"]["content"]
    assert "".join(found["deltas"]) == whole["choices"][0]["message"]["content"]


def test_completions_of_several_prompts(folder: Path, server: ServerProcess) -> None:
    found = run(folder, server, "completions")
    assert found["texts"] == found["whole"]
    assert all(found["whole"])


def test_breaking_out_of_the_loop_frees_what_it_held(folder: Path, server: ServerProcess) -> None:
    before = server.metrics()["vllm:request_success_total"]
    assert run(folder, server, "leave") == {"seen": 3}
    until("an idle engine", server.is_idle)
    assert server.metrics()["vllm:request_success_total"] > before


def test_the_tools_helper_parses_and_runs_the_call(folder: Path, server: ServerProcess) -> None:
    found = run(folder, server, "tools")
    assert len(found["calls"]) == 2  # one whole, one streamed
    assert found["calls"][0] == found["calls"][1]
    assert found["calls"][0].keys() == {"kind", "old"}
    assert found["last"]["name"] == found["streamed"]["name"] == "pick"
    assert found["last"]["arguments"] == found["streamed"]["arguments"]


def test_deltas_of_a_call_have_the_shape_that_strict_readers_want(folder: Path, server: ServerProcess) -> None:
    first, *later = run(folder, server, "deltas")
    assert first["index"] == 0
    assert first["type"] == "function"
    assert first["id"]
    assert first["function"] == {"name": "pick", "arguments": ""}
    assert len(later) > 1
    for delta in later:
        assert delta.keys() == {"index", "function"}
        assert delta["function"].keys() == {"arguments"}
    arguments = json.loads("".join(delta["function"]["arguments"] for delta in later))
    assert arguments.keys() == {"kind", "old"}


def test_a_zod_schema_is_enforced_and_parsed(folder: Path, server: ServerProcess) -> None:
    found = run(folder, server, "parsed")
    assert found["name"] in ("red", "blue")
    assert found["bright"] in (True, False)


def test_each_fault_raises_its_class(folder: Path, server: ServerProcess) -> None:
    found = run(folder, server, "errors")
    assert all(each.pop("has_id") for each in found.values())
    assert found == {
        "temperature": {"kind": "BadRequestError", "status": 400, "param": "temperature", "code": None},
        "model": {"kind": "NotFoundError", "status": 404, "param": "model", "code": "model_not_found"},
        "stream": {"kind": "BadRequestError", "status": 400, "param": "n", "code": None},
        "key": {"kind": "AuthenticationError", "status": 401, "param": None, "code": "invalid_api_key"},
    }


def test_embeddings_come_back_as_vectors(folder: Path, server: ServerProcess) -> None:
    needs_route(server, "/v1/embeddings")
    assert run(folder, server, "embeddings") == {"num": 2, "same": True}
