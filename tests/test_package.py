"""The package as a whole: layers, cleanliness, what importing it does."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from jaxscale.base.lazy import public_homes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxscale"

CORE = (
    "base",
    "hardware",
    "models",
    "tables",
    "calibration",
    "plans",
    "costs",
    "runs",
    "fitting",
    "optimise",
    "laws",
    "designs",
    "report",
    "cli",
)
"""Folders of what every study needs."""

WINGS = (
    *("tracing", "examples", "serving", "burst", "islands", "limits", "sweeps", "trends", "explore", "launch"),
    *("timeline", "measuring", "explaining", "rollouts"),
)
"""Folders of one capability each, with its command and its report: core does without them."""

REGISTRY = (
    "jaxscale/__init__.py",
    "jaxscale/base/lazy.py",
    "jaxscale/cli/registry.py",
    "jaxscale/runs/row_kinds.py",
)
"""Modules that know wings, by their names: the lazy tables of public names and the registry of commands."""

PAGES_BY_PACKAGE = "jaxscale/cli/console.py"
"""Module whose texts name packages without importing them: the page of the documentation about an error."""


def room_of(path: str) -> str:
    """Folder of a module inside the package."""
    return path.split("/")[1].removesuffix(".py")


def modules_by_text(source: str) -> set[str]:
    """Modules of the package that strings of a module name, alone or with an attribute behind a colon.

    A string with parts that are filled in names the package before them. A text of a message names none, as it has more
    in it than a name.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            first = node.values[0] if node.values else None
            text = first.value if isinstance(first, ast.Constant) and str(first.value).endswith(".") else ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if found := re.fullmatch(r"(jaxscale(?:\.\w+)+)(?::\w+|\.)?", str(text)):
            names.add(found[1])
    return names


def imported_by_text(path: str, source: str) -> set[str]:
    """Modules that a module names by text beside the packages that it is in, which are loaded before it."""
    if path in (*REGISTRY, PAGES_BY_PACKAGE):
        return set()
    own = module_name(path)
    return {name for name in modules_by_text(source) if not f"{own}.".startswith(f"{name}.")}


def imported_rooms(source: str, path: str = "jaxscale/base/any.py") -> set[str]:
    """Folders of the package that a module imports, wherever in it the import stands, by statement or by text."""
    names = imported_by_text(path, source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("jaxscale.")}


def climbs(source: str, room: str, path: str = "jaxscale/base/any.py") -> set[str]:
    """Folders that a module of a given folder must not import but does."""
    rooms = imported_rooms(source, path)
    if room == "base":
        return rooms - {"base"}
    return rooms & set(WINGS) if room in CORE else set()


MODULES = sorted(file for file in PACKAGE.rglob("*.py") if file.name not in ("__init__.py", "__main__.py"))


def test_every_module_has_a_folder_and_every_folder_a_kind():
    assert {room_of(path) for path in SOURCES} - {"__init__", "__main__"} == {*CORE, *WINGS}


@pytest.mark.parametrize("room", CORE)
def test_core_does_without_the_wings(room: str):
    found = {path: climbs(source, room, path) for path, source in SOURCES.items() if room_of(path) == room}
    assert not {path: rooms for path, rooms in found.items() if rooms and path not in REGISTRY}


def test_imports_name_the_package_in_full():
    assert not [path for path, source in SOURCES.items() if re.search(r"^\s*from \.", source, re.MULTILINE)]


def test_the_check_of_core_can_fail():
    assert climbs("def late():\n    from jaxscale.serving.engine import Engine", "costs") == {"serving"}
    assert climbs("from jaxscale import limits", "runs") == {"limits"}
    assert climbs("from jaxscale.hardware.cluster import Chip", "base") == {"hardware"}
    assert not climbs("from jaxscale.serving.engine import Engine", "islands")
    assert climbs('importlib.import_module("jaxscale.limits.study")', "laws") == {"limits"}
    assert climbs('COMMANDS = {"limits": "jaxscale.limits.command:Limits"}', "plans") == {"limits"}
    assert climbs('importlib.import_module(f"jaxscale.explore.{name}")', "plans") == {"explore"}
    assert not climbs('"steps of jaxscale.examples are known"', "base")


SOURCES = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
"""Text of every module of the package, by path."""


def module_name(path: str) -> str:
    """Dotted name of a module of the package."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Modules that each module imports: at its top, inside functions, for type checkers alone, and by text."""
    modules = {module_name(path) for path in sources}
    graph = {}
    for path, source in sources.items():
        imported = imported_by_text(path, source)
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
    by_text = {"jaxscale/a.py": 'import_module("jaxscale.b")', "jaxscale/b.py": "from jaxscale import a"}
    assert import_circle(import_graph(by_text)) == ["jaxscale.a", "jaxscale.b", "jaxscale.a"]
    typed = {"jaxscale/a.py": "if TYPE_CHECKING:\n    from jaxscale.b import g", "jaxscale/b.py": "import jaxscale.a"}
    assert import_circle(import_graph(typed))
    assert not import_circle(import_graph({"jaxscale/a.py": "import jaxscale.b", "jaxscale/b.py": "import numpy"}))


def shared_names(sources: dict[str, str]) -> set[str]:
    """Public classes and functions that more than one module defines."""
    homes = Counter(
        node.name
        for source in sources.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    )
    return {name for name, count in homes.items() if count > 1}


def test_a_name_means_one_thing():
    assert not shared_names(SOURCES)


def test_the_name_check_can_fail():
    assert shared_names({"a.py": "class Problem: pass", "b.py": "def Problem(): pass"}) == {"Problem"}
    assert not shared_names({"a.py": "def _own(): pass", "b.py": "def _own(): pass\ndef other(): pass"})


def aliases(sources: dict[str, str]) -> set[str]:
    """Second names of public functions and classes: assigned in a module, or imported under another name and passed on.

    A name under which a module imports a function for itself alone is none.
    """
    public: set[str] = set()
    taken: set[str] = set()
    second: set[str] = set()
    renamed: set[str] = set()
    trees = {module_name(path): ast.parse(source) for path, source in sources.items()}
    for tree in trees.values():
        public |= {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                taken |= {f"{node.module}.{alias.name}" for alias in node.names}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in public:
                second |= {f"{module}.{name.id}" for name in node.targets if isinstance(name, ast.Name)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxscale"):
                named = [alias.asname for alias in node.names if alias.asname not in (None, alias.name)]
                renamed |= {f"{module}.{name}" for name in named}
    faces = {module_name(path) for path in sources if path.endswith("/__init__.py")}
    return second | {name for name in renamed if name in taken or name.rpartition(".")[0] in faces}


def test_a_public_function_has_one_name():
    assert not aliases(SOURCES)


def test_the_alias_check_can_fail():
    assigned = {"jaxscale/a.py": "def f(): pass\ng = f"}
    assert aliases(assigned) == {"jaxscale.a.g"}
    passed_on = {"jaxscale/a.py": "from jaxscale.b import f as g", "jaxscale/c.py": "from jaxscale.a import g"}
    assert aliases(passed_on) == {"jaxscale.a.g"}
    assert aliases({"jaxscale/x/__init__.py": "from jaxscale.b import f as g"}) == {"jaxscale.x.g"}
    assert not aliases({"jaxscale/a.py": "from jaxscale.b import f as of_b\nsize = of_b()"})


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


def test_citation_and_changelog_speak_of_the_version():
    import jaxscale as js

    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    date = re.search(r"^date-released: (\S+)$", cited, re.MULTILINE)
    assert date and f"\nversion: {js.__version__}\n" in cited
    sections = re.findall(r"^## \[(\d.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == f"{js.__version__}] - {date[1]}"


FACES = ("burst", "designs", "examples", "explaining", "islands", "laws", "limits", "measuring", "plans", "report")
FACES += ("rollouts", "serving", "sweeps", "tracing", "trends")
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
import jaxscale.runs.predict, jaxscale.costs.memory, jaxscale.fitting.multistart
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
    assert inner_imports("import jaxscale.costs.memory") == {"jaxscale.costs.memory"}
    assert not inner_imports("import jaxscale as js\nfrom jaxscale import limits, report\nimport jax")
