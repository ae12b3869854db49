"""One real `octavo serve` with the default model for every client. Runs in an environment of its own: make test-clients.

Elsewhere nothing here is collected, since the clients are not there. A client that cannot be had on a machine skips
its own tests with the reason.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from support.clients import KEY
from support.server_process import ServerProcess, serving

NUM_MODEL_TOKENS = 2048

collect_ignore_glob = [] if importlib.util.find_spec("langchain_openai") else ["test_*.py"]


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The model is "m" and asks for a key; nothing of what clients send may be in its log."""
    model = str(request.getfixturevalue("smollm2_path"))
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--served-model-name", "m", "--max-model-len", str(NUM_MODEL_TOKENS), "--max-num-seqs", "16")
    options += ("--api-key", KEY, "--tool-call-parser", "hermes", "--enable-auto-tool-choice")
    with serving(model, log, options) as started:
        started.headers = {"Authorization": f"Bearer {KEY}"}
        yield started
        assert "Traceback" not in started.output
        assert "which nobody knows here" not in started.output, "a client sends a field that should be known"
        assert KEY not in started.output


@pytest.fixture(scope="session")
def base_url(server: ServerProcess) -> str:
    return f"{server.url}/v1"
