"""One small fake server a module, and what attacks it. `OPTIONS` of a module are its server's."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from support.attack import Attacker, with_bodies
from support.server_process import ServerProcess, serving

SMALL = ("--max-model-len", "256", "--max-num-seqs", "16", "--num-gpu-blocks-override", "600")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = getattr(request.module, "OPTIONS", SMALL)
    options = (*options, "--scheduling-policy", "priority")  # so that the route that changes one has something to do
    with serving("fake", tmp_path_factory.mktemp("server") / "log", options) as started:
        key = getattr(request.module, "KEY", None)
        started.headers = {"Authorization": f"Bearer {key}"} if key else {}
        with Attacker(started) as attacker:  # what is made on first use stands in the base that memory goes back to
            for target in with_bodies():
                response: httpx.Response = attacker.send(target, target.body())
                assert response.status_code in (200, 403, 404), (str(target), response.text)
        yield started


@pytest.fixture
def attacker(server: ServerProcess) -> Iterator[Attacker]:
    with Attacker(server) as made:
        yield made
