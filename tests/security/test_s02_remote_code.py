"""S2: a model's folder is data. Whatever code lies in it, and whatever names it, nothing of it is run; also under -O."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.errors import ModelFileError
from octavo.loading.front import load_front
from octavo.loading.model_files import resolve
from support.hf_folder import write_folder
from support.server_process import SOURCE

pytestmark = [pytest.mark.security("S2"), pytest.mark.long]

CODE = "from pathlib import Path\nPath({target!r}).write_text('run')\nclass Any:\n    pass\n"
LOAD = (
    "import sys; from pathlib import Path; from octavo.loading.load_model import load_model; "
    "from octavo.loading.model_files import resolve; load_model(resolve(sys.argv[1], home=Path(sys.argv[2]), download=False))"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that loads, with code under every name that a config can point at."""
    made = write_folder(tmp_path / "model")
    for name in ("configuration_x", "modeling_x", "tokenization_x", "processing_x", "handler", "__init__"):
        (made / f"{name}.py").write_text(CODE.format(target=str(tmp_path / "PWNED")))
    names = {
        "AutoConfig": "configuration_x.Any",
        "AutoModelForCausalLM": "modeling_x.Any",
        "AutoTokenizer": ["tokenization_x.Any", "tokenization_x.Any"],
        "AutoProcessor": "processing_x.Any",
    }
    for name in ("config.json", "tokenizer_config.json", "processor_config.json", "generation_config.json"):
        path = made / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(content | {"auto_map": names, "trust_remote_code": True, "custom_pipelines": names}))
    return made


@pytest.mark.parametrize("flags", [[], ["-O"], ["-OO"]])
def test_code_beside_the_weights_is_never_run(folder: Path, tmp_path: Path, flags: list[str]) -> None:
    environment = dict(os.environ, PYTHONPATH=str(SOURCE))
    done = subprocess.run(
        [sys.executable, *flags, "-c", LOAD, str(folder), str(tmp_path)],
        cwd=folder,  # so that the folder stands first on the path of what is imported by name
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not (tmp_path / "PWNED").exists(), done.stderr
    assert done.returncode == 0 or "ModelFileError" in done.stderr, done.stderr


def test_pickled_weights_alone_are_refused(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    (folder / "model.pt").write_bytes(b"\x80\x04.")
    from octavo.loading.load_model import load_model

    with pytest.raises(ModelFileError):
        load_model(resolve(str(folder), home=folder, download=False))


def test_the_front_reads_the_same_folder_as_data(folder: Path, tmp_path: Path) -> None:
    before = set(sys.modules)
    load_front(resolve(str(folder), home=folder, download=False))
    assert not (tmp_path / "PWNED").exists()
    assert not [name for name in set(sys.modules) - before if name.endswith("_x")]
