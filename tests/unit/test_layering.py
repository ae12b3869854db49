"""Imports go downward only. The layers are those of docs/architecture.md; a new package must be named here."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "octavo"

# Lowest first; packages of one layer never import each other.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "config",
            "tier_spec",
            "sampling_params",
            "grammar_spec",
            "decoding_spec",
            "pooling_params",
            "outputs",
            "errors",
            "log_lines",
        }
    ),
    frozenset({"core", "program"}),
    frozenset({"sampling", "models"}),
    frozenset({"tiers", "executors", "loading", "constraints"}),
    frozenset({"engine"}),
    frozenset({"server", "bench"}),
    frozenset({"batch"}),
    frozenset({"cli"}),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FREE = {"__init__", "__main__", "_native"}  # the public face, and the extension that executors load
BOTTOM_MAY_IMPORT = {
    ("sampling_params", "errors"),
    ("sampling_params", "grammar_spec"),
    ("sampling_params", "decoding_spec"),
    ("grammar_spec", "errors"),
    ("decoding_spec", "errors"),
    ("sampling_params", "pooling_params"),
    ("pooling_params", "errors"),
    ("config", "errors"),
    ("config", "tier_spec"),
    ("tier_spec", "errors"),
}


def imported_modules(path: Path) -> set[str]:
    """Every octavo module a file imports, also inside functions and `if TYPE_CHECKING`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "octavo"}


def part_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def owner_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_belongs_to_a_layer() -> None:
    unknown = {owner_of(path) for path in files()} - set(LEVEL) - FREE
    assert not unknown, f"name a layer for {sorted(unknown)}"
    assert len(files()) > 40


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_layers_below(path: Path) -> None:
    owner = owner_of(path)
    if owner in FREE:
        return
    for module in imported_modules(path):
        target = part_of(module)
        if target is None or target in FREE or target == owner or target not in LEVEL:
            continue
        if (owner, target) in BOTTOM_MAY_IMPORT:
            continue
        assert LEVEL[target] < LEVEL[owner], f"{owner} imports {module}, which is not below it"


def test_only_build_knows_executors_loaders_and_tiers_together() -> None:
    concrete = {"octavo.executors.fake", "octavo.executors.reference", "octavo.executors.cpu"}
    for path in files():
        if concrete & imported_modules(path) and owner_of(path) not in {"executors", "cli"}:
            assert path == PACKAGE / "engine" / "build.py", f"{path} names an executor"


def test_core_imports_where_numpy_and_torch_are_absent() -> None:
    program = (
        "import sys\n"
        "for name in ('numpy', 'torch', 'octavo.program'): sys.modules[name] = None\n"
        "import octavo.core.scheduler, octavo.core.kv_cache_manager, octavo.core.protocols\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
