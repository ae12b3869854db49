"""`import octavo` is cheap, and every public name can be had from it."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import octavo

SOURCE = str(Path(octavo.__file__).parents[1])


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {SOURCE!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_importing_octavo_imports_nothing_else_of_weight() -> None:
    loaded = run("import octavo\nprint(*sorted(n for n in sys.modules if n.split('.')[0] in "
                 "('numpy', 'octavo', 'msgspec', 'rich', 'tokenizers', 'asyncio')))")  # fmt: skip
    assert loaded.split() == ["octavo"]


def test_a_name_brings_what_it_needs_and_star_works() -> None:
    assert run("from octavo import SamplingParams\nprint('numpy' in sys.modules)") == "False\n"
    assert run("from octavo import *\nprint(LLM.__name__, QueueFull.__name__)") == "LLM QueueFull\n"


def test_the_server_side_of_the_engine_needs_no_numpy() -> None:
    assert run("import octavo.engine.async_engine\nprint('numpy' in sys.modules)") == "False\n"


def test_the_version_is_the_packages() -> None:
    try:
        assert version("octavo") == octavo.__version__
    except PackageNotFoundError:
        pyproject = (Path(SOURCE).parent / "pyproject.toml").read_text()
        assert f'version = "{octavo.__version__}"' in pyproject
