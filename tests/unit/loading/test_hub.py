"""Fetching from a hub, against one on localhost: what is chosen, what is refused, that it is whole or not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.errors import ModelFileError
from octavo.loading.hub import NOTE_NAME, choose_files, fetch_hub_model, stored_hub_model, stored_hub_names
from octavo.loading.model_names import HubId, parse_hub_id
from octavo.loading.store import list_models, model_folder, remove
from support.fake_hub import COMMIT, fake_hub

SAFE = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"x",
    "model.safetensors": b"weights" * 1000,
    "pytorch_model.bin": b"\x80\x04pickle",
    "modeling_evil.py": b"raise SystemExit",
    "README.md": b"hello",
    "../../escape.json": b"{}",
    "onnx/model.safetensors": b"no",
}
GGUF = {"a-Q4_0.gguf": b"GGUF-a", "sub/b-Q8_0.gguf": b"GGUF-b", "../up.gguf": b"no", "README.md": b"hello"}
REPOSITORIES = {
    "team/safe": SAFE,
    "team/one": {"only.gguf": b"GGUF-only"},
    "team/many": GGUF,
    "team/bin": {"config.json": b"{}", "m.bin": b"x"},
}


def silent(done: int, total: int, text: str) -> None:
    pass


def hub_id(name: str) -> HubId:
    parsed = parse_hub_id(name)
    assert parsed is not None
    return parsed


def test_a_folder_is_fetched_whole_without_code_and_pickles(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    folder = tmp_path / "team--safe"
    with fake_hub(REPOSITORIES) as hub:
        path = fetch_hub_model(
            hub_id("team/safe"), folder, lambda done, total, text: reports.append((done, total)), hub.endpoint
        )
        fetched = [request for request in hub.requests if "/resolve/" in request]
    assert path == folder
    assert (folder / "model.safetensors").read_bytes() == SAFE["model.safetensors"]
    ours = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
    assert ours == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    }
    assert not (tmp_path / "escape.json").exists()
    assert all(f"/resolve/{COMMIT}/" in request for request in fetched)  # one commit for every file
    assert json.loads((folder / NOTE_NAME).read_text())["commit"] == COMMIT
    assert reports[-1][0] == reports[-1][1] == sum(len(SAFE[name]) for name in ours)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert stored_hub_model(folder, None) == folder
    assert list(stored_hub_names(tmp_path)) == ["team/safe"]


def test_gguf_files_are_fetched_by_name_or_where_there_is_one(tmp_path: Path) -> None:
    with fake_hub(REPOSITORIES) as hub:
        assert (
            fetch_hub_model(hub_id("team/one"), tmp_path / "team--one", silent, hub.endpoint).read_bytes()
            == b"GGUF-only"
        )
        many = tmp_path / "team--many"
        for name in ("a-Q4_0.gguf", "sub/b-Q8_0.gguf"):
            path = fetch_hub_model(hub_id(f"team/many:{name}"), many, silent, hub.endpoint)
            assert path == many / name
            assert path.read_bytes() == GGUF[name]
        with pytest.raises(
            ModelFileError,
            match=r"several .gguf files; name one as team/many:FILE; its .gguf files: a-Q4_0.gguf, sub/b",
        ):
            fetch_hub_model(hub_id("team/many"), many, silent, hub.endpoint)
        with pytest.raises(ModelFileError, match=r"has no file 'c\.gguf'"):
            fetch_hub_model(hub_id("team/many:c.gguf"), many, silent, hub.endpoint)
    assert sorted(stored_hub_names(tmp_path)) == [
        "team/many:a-Q4_0.gguf",
        "team/many:sub/b-Q8_0.gguf",
        "team/one:only.gguf",
    ]
    assert stored_hub_model(many, None) is None  # two: which is not said
    assert stored_hub_model(many, "a-Q4_0.gguf") == many / "a-Q4_0.gguf"


def test_pickled_weights_alone_are_refused() -> None:
    with pytest.raises(ModelFileError, match="never opened"):
        choose_files(hub_id("team/bin"), {"config.json": 2, "m.bin": 1, "../x.gguf": 1})


def test_shards_come_with_their_index() -> None:
    names = [
        "config.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert (
        choose_files(
            hub_id("a/b"), dict.fromkeys([*names, "consolidated.safetensors", "x/model-1-of-2.safetensors"], 1)
        )
        == names
    )


def test_the_hubs_refusal_names_the_id(tmp_path: Path) -> None:
    with (
        fake_hub(REPOSITORIES) as hub,
        pytest.raises(ModelFileError, match=r"^team/none could not be fetched from the hub: "),
    ):
        fetch_hub_model(hub_id("team/none"), tmp_path / "x", silent, hub.endpoint)
    with pytest.raises(ModelFileError, match="could not be fetched"):
        fetch_hub_model(hub_id("team/safe"), tmp_path / "x", silent, "http://127.0.0.1:9")


def test_a_commit_that_is_none_is_refused(tmp_path: Path) -> None:
    with fake_hub(REPOSITORIES) as hub:
        hub.commit = "../main"
        with pytest.raises(ModelFileError, match="names no commit"):
            fetch_hub_model(hub_id("team/safe"), tmp_path / "x", silent, hub.endpoint)


def test_a_fetch_that_broke_off_is_not_used(tmp_path: Path) -> None:
    with fake_hub(REPOSITORIES) as hub:
        fetch_hub_model(hub_id("team/safe"), tmp_path / "team--safe", silent, hub.endpoint)
    (tmp_path / "team--safe" / "model.safetensors").unlink()
    assert stored_hub_model(tmp_path / "team--safe", None) is None
    (tmp_path / "team--safe" / NOTE_NAME).write_text('{"files": ["../../etc/passwd", 5]}')
    assert stored_hub_model(tmp_path / "team--safe", None) is None
    (tmp_path / "team--safe" / NOTE_NAME).unlink()
    assert list(stored_hub_names(tmp_path)) == []


def test_fetched_hub_models_are_listed_and_removed(tmp_path: Path) -> None:
    with fake_hub(REPOSITORIES) as hub:
        for name in ("team/safe", "team/many:a-Q4_0.gguf", "team/many:sub/b-Q8_0.gguf"):
            fetch_hub_model(hub_id(name), model_folder(name, tmp_path), silent, hub.endpoint)
    assert [stored.name for stored in list_models(tmp_path)] == [
        "team/many:a-Q4_0.gguf", "team/many:sub/b-Q8_0.gguf", "team/safe",
    ]  # fmt: skip
    assert remove("team/many:a-Q4_0.gguf", tmp_path) == len(GGUF["a-Q4_0.gguf"])
    assert [stored.name for stored in list_models(tmp_path)] == ["team/many:sub/b-Q8_0.gguf", "team/safe"]
    with pytest.raises(ModelFileError, match="not among the fetched models"):
        remove("team/many:a-Q4_0.gguf", tmp_path)
    assert remove("team/safe", tmp_path) >= len(SAFE["model.safetensors"])
    remove("team/many", tmp_path)
    assert list_models(tmp_path) == []


def test_resolve_fetches_a_hub_id_once_from_hf_endpoint(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from octavo.loading.model_files import resolve; "
        "files = resolve('team/one', home=Path(sys.argv[1])); print(files.kind, files.path.name, files.name)"
    )
    with fake_hub(REPOSITORIES) as hub:
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HF_HOME": str(tmp_path / "hf"),
        }
        for _ in range(2):
            asked = len(hub.requests)
            done = subprocess.run(
                [sys.executable, "-c", program, str(tmp_path)],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stdout) == (0, "gguf only.gguf team/one\n"), done.stderr
        assert len(hub.requests) == asked  # the second time the network was not asked
