from __future__ import annotations

from pathlib import Path

import pytest

import octavo.loading.pull
import octavo.loading.store
from octavo.cli.width import text_width
from octavo.errors import ModelFileError
from octavo.loading.store import StoredModel
from support.cli_runner import run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[StoredModel]:
    """Two models, as `list_models` tells them; `remove` takes them out."""
    models = [
        StoredModel("smollm2", home / "models/smollm2/s.gguf", 98_362_432),
        StoredModel("hub/모델", home / "models/hub/m.gguf", 1_500_000_000),
    ]

    def remove(name: str, given: Path) -> int:
        assert given == home
        for model in models:
            if model.name == name:
                models.remove(model)
                return model.num_bytes
        raise ModelFileError(f"{name!r} is not among the fetched models")

    monkeypatch.setattr(octavo.loading.store, "list_models", lambda given: list(models))
    monkeypatch.setattr(octavo.loading.store, "remove", remove)
    return models


def test_pull_prints_the_path_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str, *, home: Path, progress: object) -> Path:
        assert callable(progress)
        progress(10, 0, "fetching")
        progress(10, 100, "fetching")
        return home / name

    monkeypatch.setattr(octavo.loading.pull, "pull", pull)
    assert (run("pull").stdout, run("pull", "a/b").stdout) == (f"{home}/smollm2\n", f"{home}/a/b\n")
    assert run("pull").stderr == ""


def test_pulling_what_is_no_model_is_one_line(home: Path) -> None:
    result = run("pull", "smollm")
    assert result.exit_code == 1
    assert result.stderr.startswith("octavo: error: ")
    assert "did you mean smollm2?" in result.stderr
    assert result.stderr.count("\n") == 1


def test_ls_of_an_empty_home_says_how_to_fill_it(home: Path) -> None:
    result = run("ls")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "octavo pull smollm2" in result.stderr


def test_ls_is_a_table_in_columns(kept: list[StoredModel], home: Path) -> None:
    lines = run("ls").stdout.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "FILE"]
    assert "98.4 MB" in lines[1]
    assert "1.5 GB" in lines[2]
    assert len({text_width(line[: line.index(str(home))]) for line in lines[1:]}) == 1


def test_rm_asks_somebody_or_refuses(kept: list[StoredModel], monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("rm", "smollm2")
    assert result.exit_code == 1
    assert "give --yes" in result.stderr
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    assert "kept" in run("rm", "smollm2", stdin="n\n").stderr
    assert len(kept) == 2
    assert run("rm", "smollm2", stdin="y\n").exit_code == 0
    assert [model.name for model in kept] == ["hub/모델"]


def test_rm_with_yes_deletes_and_says_how_much(kept: list[StoredModel]) -> None:
    result = run("rm", "smollm2", "--yes")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "98.4 MB freed\n")


def test_rm_of_what_is_not_kept_names_it(kept: list[StoredModel]) -> None:
    result = run("rm", "other")
    assert result.exit_code == 1
    assert "'other' is not among" in result.stderr
