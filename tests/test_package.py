"""The package as a whole: layers, cleanliness, what importing it does."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxscale"

LAYERS = (
    ("errors", "_arrays", "_smooth", "_names", "_resources", "_compile", "_markup", "files"),
    ("hardware",),
    ("workload",),
    ("models", "plan"),
    ("calibration",),
    ("costs",),
    ("memory", "step"),
    ("runs",),
    ("fit",),
    ("predict",),
    ("laws", "optimise"),
    ("plans", "designs"),
    ("report",),
    ("burst", "limits", "trends"),
    ("cli",),
)
"""Modules and folders of the package in the order of the data flow: each imports from its own row and those above."""

RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}


def layer_of(file: Path) -> str:
    """First part of a module's name inside the package."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(source: str) -> set[str]:
    """Layers of the package that a module imports, wherever in it the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("jaxscale.")}


def downstream(source: str, layer: str) -> set[str]:
    """Layers that a module of a given layer must not import but does."""
    return {name for name in imported_layers(source) if RANK.get(name, -1) > RANK[layer]}


MODULES = sorted(file for file in PACKAGE.rglob("*.py") if file.name not in ("__init__.py", "__main__.py"))


def test_every_module_has_a_layer():
    assert {layer_of(file) for file in MODULES} <= set(RANK)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_imports_point_upstream(file: Path):
    source = file.read_text(encoding="utf-8")
    assert not downstream(source, layer_of(file))
    assert not re.search(r"^\s*from \.", source, re.MULTILINE), "imports name the package in full"


def test_the_layer_check_can_fail():
    assert downstream("def late():\n    from jaxscale.fit.solve import solve", "costs") == {"fit"}
    assert downstream("from jaxscale import cli", "predict") == {"cli"}
    assert not downstream("from jaxscale.plan.plan import Plan", "costs")


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_modules_are_short_and_checked(file: Path):
    source = file.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 500
    # It would turn annotations into strings and with them the run-time shape checks off.
    assert "from __future__ import annotations" not in source


TRACES = {
    "a path of one machine": r"(?<![\w.])/(?:home|root|tmp|work|Users|workspace)/\w",
    "a tracker of tasks": r"\bissues? #?\d+\b|\bshared/|\bTODO\b|\bFIXME\b",
    "a package registry": r"pypi\.org|files\.pythonhosted|index-url|artifactory",
}
TEXTS = {".py", ".toml", ".md", ".cff", ".yml", ".yaml", ".cfg", ".ipynb", ".css", ".html", ""}


def tracked_files() -> list[Path]:
    """Text files that belong to the repository: tracked, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.splitlines()]
    return [file for file in files if file.suffix in TEXTS and file.is_file() and file != Path(__file__).resolve()]


def traces(text: str) -> list[str]:
    """Kinds of forbidden mention in a text."""
    return [kind for kind, pattern in TRACES.items() if re.search(pattern, text, re.IGNORECASE)]


def test_the_repository_speaks_of_itself_only():
    found = {}
    for file in tracked_files():
        kinds = traces(file.read_text(encoding="utf-8", errors="replace"))
        if kinds:
            found[file.relative_to(ROOT).as_posix()] = kinds
    assert not found


@pytest.mark.parametrize("text", ["see /home/me/x", "TODO later", "as in shared/x.md", "https://pypi.org/simple"])
def test_the_mention_check_can_fail(text: str):
    assert traces(text)


FRESH_IMPORT = """
import sys, jax
before = dict(jax.config.values)
import jaxscale
from jax._src import xla_bridge
print(dict(jax.config.values) == before, bool(xla_bridge._backends))
print([name for name in ("matplotlib", "pandas", "rich", "scipy.stats", "tyro") if name in sys.modules])
jax.config.update("jax_enable_x64", not before["jax_enable_x64"])
jax.devices()
print(dict(jax.config.values) == before, bool(xla_bridge._backends))
"""


def test_import_changes_no_setting_starts_no_backend_and_leaves_heavy_libraries_out():
    done = subprocess.run([sys.executable, "-c", FRESH_IMPORT], cwd=ROOT, capture_output=True, text=True, check=True)
    after_import, heavy, control = done.stdout.strip().splitlines()
    assert (after_import, heavy) == ("True False", "[]")
    assert control == "False True"


def test_the_public_names_are_there():
    import jaxscale as js

    names = "chip cluster Transformer model Plan step_time memory read_runs predict fit load_fit Coefficients".split()
    assert all(hasattr(js, name) for name in names)
    assert re.fullmatch(r"\d+\.\d+\.\d+", js.__version__)
    assert f'version = "{js.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
