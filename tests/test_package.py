"""The package as a whole: layers, cleanliness, what importing it does."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from jaxscale._lazy import public_homes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxscale"

LAYERS = (
    (
        "errors",
        "units",
        "_arrays",
        "_lazy",
        "_smooth",
        "_resources",
        "_compile",
        "_markup",
        "_table",
        "files",
    ),
    ("hardware",),
    ("workload", "tracing", "examples"),
    ("models", "plan"),
    ("calibration",),
    ("costs",),
    ("memory", "step"),
    ("power", "compiled"),
    ("runs",),
    ("completion", "fit", "predict_traced", "readers"),
    ("predict",),
    ("laws", "optimise"),
    ("plans", "writers"),
    ("designs",),
    ("serving",),
    ("report",),
    ("burst", "explore", "islands", "limits", "trends"),
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
    assert downstream("def late():\n    from jaxscale.fit.multistart import solve", "costs") == {"fit"}
    assert downstream("from jaxscale import cli", "predict") == {"cli"}
    assert not downstream("from jaxscale.plan.plan import Plan", "costs")


SOURCES = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
"""Text of every module of the package, by path."""


def module_name(path: str) -> str:
    """Dotted name of a module of the package."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Modules that each module imports: at its top, inside functions, and for type checkers alone."""
    modules = {module_name(path) for path in sources}
    graph = {}
    for path, source in sources.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                imported |= {name if name in modules else node.module for name in names}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        graph[module_name(path)] = (imported & modules) - {module_name(path)}
    return graph


def import_circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of modules that import each other, its first module again at the end; empty where there is none."""
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in finished:
            return []
        for imported in sorted(graph[module]):
            if circle := visit(imported, [*path, module]):
                return circle
        finished.add(module)
        return []

    return next((circle for module in sorted(graph) if (circle := visit(module, []))), [])


def test_imports_form_no_circle():
    assert not import_circle(import_graph(SOURCES))


def test_the_circle_check_can_fail():
    late = {"jaxscale/a.py": "def f():\n    from jaxscale.b import g", "jaxscale/b.py": "from jaxscale import a"}
    assert import_circle(import_graph(late)) == ["jaxscale.a", "jaxscale.b", "jaxscale.a"]
    typed = {"jaxscale/a.py": "if TYPE_CHECKING:\n    from jaxscale.b import g", "jaxscale/b.py": "import jaxscale.a"}
    assert import_circle(import_graph(typed))
    assert not import_circle(import_graph({"jaxscale/a.py": "import jaxscale.b", "jaxscale/b.py": "import numpy"}))


SHARED_MODULES = {
    "plan": "the module of the command `jaxscale plan` is named after its verb",
    "predict": "the module of the command `jaxscale predict` is named after its verb",
}
"""Names that more than one module of the package may have, with the reason."""


def shared_names(sources: dict[str, str]) -> set[str]:
    """Public classes and functions that more than one module defines."""
    homes = Counter(
        node.name
        for source in sources.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    )
    return {name for name, count in homes.items() if count > 1}


def shared_modules(paths: Iterable[str]) -> set[str]:
    """File names that more than one module has; every folder has an `__init__`."""
    homes = Counter(Path(path).stem for path in paths)
    return {name for name, count in homes.items() if count > 1 and name != "__init__"}


def test_a_name_means_one_thing():
    assert not shared_names(SOURCES)
    assert shared_modules(SOURCES) == set(SHARED_MODULES)


def test_the_name_check_can_fail():
    assert shared_names({"a.py": "class Problem: pass", "b.py": "def Problem(): pass"}) == {"Problem"}
    assert not shared_names({"a.py": "def _own(): pass", "b.py": "def _own(): pass\ndef other(): pass"})
    assert shared_modules(["jaxscale/a/sweep.py", "jaxscale/b/sweep.py", "jaxscale/a/__init__.py"]) == {"sweep"}


MOST_LINES = 400
"""Lines of a module at most."""

MOST_MODULES = 16
"""Modules of a folder at most, besides `__init__` and `__main__`."""


def long_modules(sources: dict[str, str]) -> set[str]:
    """Modules of more lines than a reader holds in the head."""
    return {path for path, source in sources.items() if len(source.splitlines()) > MOST_LINES}


def full_folders(paths: Iterable[str]) -> set[str]:
    """Folders of more modules than a reader holds in the head."""
    homes = Counter(Path(path).parent.as_posix() for path in paths if not Path(path).stem.startswith("__"))
    return {folder for folder, count in homes.items() if count > MOST_MODULES}


def test_modules_and_folders_are_small():
    assert not long_modules(SOURCES)
    assert not full_folders(SOURCES)


def test_the_size_check_can_fail():
    assert long_modules({"jaxscale/a.py": "x = 1\n" * 401, "jaxscale/b.py": "x = 1\n" * 400}) == {"jaxscale/a.py"}
    crowded = [f"jaxscale/a/m{index}.py" for index in range(17)]
    assert full_folders([*crowded, "jaxscale/b/m.py"]) == {"jaxscale/a"}
    assert not full_folders([*crowded[1:], "jaxscale/a/__init__.py"])


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_annotations_are_checked_at_run_time(file: Path):
    # The future import would turn annotations into strings and with them the run-time shape checks off.
    assert "from __future__ import annotations" not in file.read_text(encoding="utf-8")


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
import sys
import jaxscale
print([name for name in ("jax", "numpy", "equinox") if name in sys.modules])
import jax
before = dict(jax.config.values)
names = [getattr(jaxscale, name) for name in jaxscale.__all__]
from jax._src import xla_bridge
print(dict(jax.config.values) == before, bool(xla_bridge._backends))
print([name for name in ("matplotlib", "pandas", "rich", "scipy.stats", "tyro") if name in sys.modules])
jax.config.update("jax_enable_x64", not before["jax_enable_x64"])
jax.devices()
print(dict(jax.config.values) == before, bool(xla_bridge._backends))
"""


def test_import_changes_no_setting_starts_no_backend_and_leaves_heavy_libraries_out():
    done = subprocess.run([sys.executable, "-c", FRESH_IMPORT], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded, after_import, heavy, control = done.stdout.strip().splitlines()
    assert loaded == "[]"
    assert (after_import, heavy) == ("True False", "[]")
    assert control == "False True"


def test_the_public_names_are_there():
    import jaxscale as js

    names = "chip cluster Transformer model Plan step_time memory read_runs predict fit load_fit Coefficients".split()
    assert set(names) <= set(js.__all__) <= set(dir(js))
    assert all(hasattr(js, name) for name in js.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", js.__version__)
    assert f'version = "{js.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


FACES = ("burst", "designs", "examples", "islands", "laws", "limits", "plans", "report", "serving", "tracing", "trends")
"""Sub-packages with public names of their own."""


@pytest.mark.parametrize("name", FACES)
def test_sub_packages_have_their_public_names(name: str):
    import jaxscale as js

    face = getattr(js, name)
    assert face.__all__
    assert all(hasattr(face, public) for public in face.__all__)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = face.absent


LOADED_FIRST = """
import jaxscale.predict, jaxscale.memory, jaxscale.fit.multistart
import jaxscale as js
print([callable(function) for function in (js.predict, js.memory, js.fit)])
"""


def test_functions_keep_their_names_when_modules_of_the_same_name_are_loaded_first():
    done = subprocess.run([sys.executable, "-c", LOADED_FIRST], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, True]"


def test_public_names_are_the_imports_that_type_checkers_see():
    source = "if TYPE_CHECKING:\n    from a.b import c as c\n    from a import b as d\nfrom e import f\n"
    assert public_homes(source) == {"c": "a.b", "d": "a"}


NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.py"))


def inner_imports(source: str) -> set[str]:
    """Modules of the package that a text imports beyond the package itself and its sub-packages with public names."""
    allowed = {"jaxscale", *(f"jaxscale.{face}" for face in FACES)}
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "jaxscale"} - allowed


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_import_no_inner_module(file: Path):
    assert not inner_imports(file.read_text(encoding="utf-8"))


def test_the_check_of_inner_imports_can_fail():
    assert inner_imports("from jaxscale.plans.score import bare") == {"jaxscale.plans.score.bare"}
    assert inner_imports("import jaxscale.memory") == {"jaxscale.memory"}
    assert not inner_imports("import jaxscale as js\nfrom jaxscale import limits, report\nimport jax")
