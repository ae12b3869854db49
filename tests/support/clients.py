"""What tests/clients share: the key of the server under test, and what it has, asked of itself."""

from __future__ import annotations

import httpx
import pytest

from support.server_process import ServerProcess

KEY = "sesame"


def needs_route(server: ServerProcess, path: str) -> None:
    """Skips the test where the server has no such route."""
    document = httpx.get(f"{server.url}/openapi.json", headers=server.headers).json()
    if path not in document["paths"]:
        pytest.skip(f"this server has no {path}")
