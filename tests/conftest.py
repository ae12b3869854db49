"""Fixtures that more than one package's tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.config import DEFAULT_MODEL, octavo_home
from octavo.loading.store import stored_path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file: OCTAVO_TEST_MODEL, else what `octavo pull` fetched. Never fetches."""
    named = os.environ.get("OCTAVO_TEST_MODEL")
    path = Path(named) if named else stored_path(DEFAULT_MODEL, octavo_home())
    if path is None:
        pytest.skip("needs the default model's file: run octavo pull smollm2")
    assert path.is_file(), f"OCTAVO_TEST_MODEL names {path}, which is no file"
    return path
