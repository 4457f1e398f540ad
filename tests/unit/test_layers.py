"""Imports go strictly downward: every module's syntax tree is walked, imports inside functions count."""

import ast
from pathlib import Path

import pytest

LAYERS = {
    "core": 0,
    "config": 1,
    "dataset": 1,
    "tokenizer": 1,
    "parallel": 2,
    "corpus": 3,
    "loader": 3,
    "model": 3,
    "optim": 3,
    "checkpoint": 4,
    "monitor": 4,
    "plan": 4,
    "stability": 4,
    "inference": 5,
    "evaluation": 6,
    "train": 7,
    "ops": 8,
}
"""Rows of the architecture; packages on one row never import each other."""
TOP = max(LAYERS.values()) + 1
"""Row of the entry modules at the top of the package."""
CORPUS_MAY_IMPORT = {"core", "config", "dataset", "tokenizer", "corpus"}
WITHOUT_JAX = {"config", "core", "corpus", "dataset", "loader", "monitor", "plan", "tokenizer"}
MAY_USE_JAX = {"core/random_bits.py", "core/trees.py"}
JAX = {"chex", "flax", "jax", "jaxlib", "optax", "orbax"}
LATE = {
    ("core/files.py", "tensorstore"): "0.3 s of start-up, for remote paths only",
    ("corpus/engine/engine.py", "maxtrain.corpus.engine.runner"): "Daft costs 0.3 s, which one task does not need",
    ("corpus/html/quality.py", "trafilatura"): "an extra of its own, slow to import",
    ("corpus/engine/runner.py", "ray"): "an extra of its own, for clusters only",
}
"""Imports inside functions outside the entry points, each with its reason."""

PACKAGE = Path(__file__).parent.parent.parent / "maxtrain"
MODULES = sorted(PACKAGE.rglob("*.py"))


def names_imported(tree: ast.AST, module: str) -> set[str]:
    """Full names of what the nodes of a tree import; `from a import b` gives a and a.b, for b may be a module."""
    package = module.split(".")[:-1]
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            names |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return names


def parts_imported(names: set[str]) -> set[str]:
    """Top-level parts of our own package among full names."""
    inner = {name.split(".")[1] for name in names if name.startswith("maxtrain.")}
    known = {path.stem for path in PACKAGE.glob("*.py")} | {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    return inner & (known - {"__init__"})


def faults_of(relative: str, source: str) -> list[str]:
    """What a module imports against the rules."""
    path = Path(relative)
    tree = ast.parse(source)
    names = names_imported(tree, "maxtrain." + relative.removesuffix(".py").replace("/", "."))
    own = path.parts[0] if len(path.parts) > 1 else None
    faults = []
    for part in sorted(parts_imported(names)):
        row = LAYERS.get(part, TOP)
        if own is None:
            # The console script names the entry modules without importing them.
            if row == TOP and relative != "__main__.py":
                faults.append(f"the entry module {part} is imported")
        elif part != own and row >= LAYERS[own]:
            faults.append(f"{own} (row {LAYERS[own]}) imports {part} (row {row})")
        elif own == "corpus" and part not in CORPUS_MAY_IMPORT:
            faults.append(f"corpus imports {part}")
    if own in WITHOUT_JAX and relative not in MAY_USE_JAX:
        faults += [f"imports {name}" for name in sorted(names) if name.split(".")[0] in JAX]
    if own is not None and path.name != "__main__.py":
        functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        late = {name for function in functions for name in names_imported(function, relative)}
        excused = {name for file, name in LATE if file == relative}
        late -= {name for name in late for known in excused if name == known or name.startswith(f"{known}.")}
        faults += [f"{name} is imported inside a function" for name in sorted(late)]
    return faults


def test_every_package_has_a_row() -> None:
    packages = {path.parent.relative_to(PACKAGE).parts[0] for path in MODULES if path.parent != PACKAGE}
    assert packages <= set(LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_go_strictly_downward(path: Path) -> None:
    assert faults_of(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("relative", "source", "fault"),
    [
        ("config/load.py", "from maxtrain.train import loop", "config (row 1) imports train (row 7)"),
        ("config/load.py", "import maxtrain.dataset.reader", "config (row 1) imports dataset (row 1)"),
        ("model/model.py", "from maxtrain import loader", "model (row 3) imports loader (row 3)"),
        ("model/model.py", "from ..optim import muon", "model (row 3) imports optim (row 3)"),
        ("corpus/build.py", "from maxtrain.parallel.mesh import make_mesh", "corpus imports parallel"),
        ("train/loop.py", "from maxtrain.cli import main", "train (row 7) imports cli (row 9)"),
        ("plan/flops.py", "import jax.numpy as jnp", "imports jax.numpy"),
        ("loader/loader.py", "from optax import adamw", "imports optax"),
        ("generate.py", "from maxtrain.report import main", "the entry module report is imported"),
    ],
)
def test_a_wrong_import_is_found(relative: str, source: str, fault: str) -> None:
    assert fault in faults_of(relative, source)
    late = "def late():\n    " + source
    assert fault in faults_of(relative, late)
    if "/" in relative:
        assert any("inside a function" in found for found in faults_of(relative, late))


@pytest.mark.parametrize(("relative", "name"), LATE, ids=str)
def test_every_excuse_is_still_needed(relative: str, name: str) -> None:
    assert name in names_imported(ast.parse((PACKAGE / relative).read_text(encoding="utf-8")), relative)


def test_what_points_downward_is_allowed() -> None:
    assert (
        faults_of("train/loop.py", "import jax\nfrom maxtrain.config import Config\nfrom maxtrain.train import step")
        == []
    )
    assert faults_of("core/trees.py", "import jax") == []
    assert faults_of("config/__main__.py", "def main():\n    import json") == []
