"""Style of the package in figures, in all and by folder; with `--changed REF` a refusal of files that grew worse.

Run: python scripts/style.py [--imports] [--changed REF]
"""

import argparse
import ast
import io
import re
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxscale"

PRONOUNS = set("it its itself they them their themselves this that these those which whose what one ones".split())
VAGUE = set(
    "thing things something anything everything nothing whatever what such those one ones other others another some "
    "same kind kinds way ways part parts place places own both".split()
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
NOT_COUNTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
BELOW = (ast.stmt, ast.ExceptHandler, ast.match_case)
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


@dataclass
class Counts:
    """Counts of one file, or sums over several."""

    modules: int = 0
    lines: int = 0
    widths: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    functions: int = 0
    comprehensions: int = 0
    comments: int = 0
    words: list[str] = field(default_factory=list)

    def add(self, other: "Counts") -> None:
        """Add the counts of other files."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def per_1000(self, chosen: set[str]) -> float:
        """Words of a set per thousand words of docstrings."""
        return 1000.0 * sum(word in chosen for word in self.words) / max(len(self.words), 1)


@dataclass(frozen=True)
class Measure:
    """One column: its meaning, its value, and where there is one its budget."""

    meaning: str
    value: Callable[[Counts], float]
    budget: float = 0.0
    is_least: bool = False
    size: Callable[[Counts], int] = lambda counts: 0
    smallest: int = 0

    def is_broken(self, counts: Counts) -> bool:
        """Whether a file is large enough to be judged and misses the budget."""
        if not self.budget or self.size(counts) < self.smallest:
            return False
        value = self.value(counts)
        return value < self.budget if self.is_least else value > self.budget

    def is_worse(self, now: Counts, before: Counts) -> bool:
        """Whether a file moved away from the budget."""
        change = self.value(now) - self.value(before)
        return change < 0.0 if self.is_least else change > 0.0


def measure_of_words(what: str, chosen: set[str], budget: float) -> Measure:
    """Column of the words of a set per thousand words of docstrings."""
    listed = ", ".join(sorted(chosen))
    return Measure(
        f"{what} per 1,000 words of docstrings ({listed}); at most {budget:g}, judged from 100 words on",
        lambda c: c.per_1000(chosen),
        budget,
        size=lambda c: len(c.words),
        smallest=100,
    )


MEASURES = {
    "modules": Measure("files that end in .py", lambda c: c.modules),
    "lines": Measure("all lines of these files", lambda c: c.lines),
    "code": Measure("lines with code: neither empty, nor a comment alone, nor of a docstring", lambda c: len(c.widths)),
    "chars": Measure(
        "mean characters of a line of code without its indentation; at most 40, judged from 20 lines on",
        lambda c: statistics.fmean(c.widths or [0]),
        40.0,
        size=lambda c: len(c.widths),
        smallest=20,
    ),
    "nodes": Measure(
        "median ast nodes of a statement without the statements below it; of all but definitions, imports and "
        "docstrings; at most 13, judged from 10 statements on",
        lambda c: statistics.median(c.nodes or [0]),
        13.0,
        size=lambda c: len(c.nodes),
        smallest=10,
    ),
    "compr": Measure(
        "comprehensions and generator expressions per function; at most 0.35, judged from 3 functions on",
        lambda c: c.comprehensions / max(c.functions, 1),
        0.35,
        size=lambda c: c.functions,
        smallest=3,
    ),
    "comm %": Measure(
        "lines that are a comment alone per 100 lines of code; at least 4, judged from 25 lines on",
        lambda c: 100.0 * c.comments / max(len(c.widths), 1),
        4.0,
        is_least=True,
        size=lambda c: len(c.widths),
        smallest=25,
    ),
    "pron": measure_of_words("pronouns", PRONOUNS, 50.0),
    "vague": measure_of_words("vague words", VAGUE, 15.0),
}


def counts_of(source: str) -> Counts:
    """Counts of the text of one module."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    texts = [node for node in nodes if is_text(node)]
    of_docstrings: set[int] = set()
    words: list[str] = []
    for node in texts:
        of_docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        words += re.findall(r"[a-z']+", node.value.value.lower())
    lines = source.splitlines()
    code, comments = lines_of_code(source)
    counts = Counts(modules=1, lines=len(lines), comments=len(comments - code), words=words)
    counts.widths = [len(lines[number - 1].strip()) for number in sorted(code - of_docstrings)]
    for node in nodes:
        counts.functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        counts.comprehensions += isinstance(node, Comprehension)
        if isinstance(node, ast.stmt) and not isinstance(node, NOT_COUNTED) and not is_text(node):
            counts.nodes.append(size_of(node))
    return counts


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a docstring, of a constant too."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def lines_of_code(source: str) -> tuple[set[int], set[int]]:
    """Numbers of the lines with code, docstrings among them, and of those with a comment."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return code, comments


def size_of(node: ast.AST) -> int:
    """Nodes of a statement without the statements below it."""
    below = [child for child in ast.iter_child_nodes(node) if not isinstance(child, BELOW)]
    return 1 + sum(map(size_of, below))


def by_folder(package: Path) -> dict[str, Counts]:
    """Sums over the modules of each folder of the package."""
    sums: dict[str, Counts] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        folder = parts[0] if len(parts) > 1 else "(top)"
        sums.setdefault(folder, Counts()).add(counts_of(path.read_text(encoding="utf-8")))
    return sums


def table(rows: dict[str, Counts]) -> Iterator[str]:
    """Lines of a table with a column for each measure."""
    yield f"{'':14}" + "".join(f"{name:>9}" for name in MEASURES)
    for name, counts in rows.items():
        values = [measure.value(counts) for measure in MEASURES.values()]
        cells = [f"{value:9,d}" if isinstance(value, int) else f"{value:9.2f}" for value in values]
        yield f"{name:14}" + "".join(cells)


MODEL = "--model llama3-8b --gpu h100-80gb --n-gpus 8 --global-batch 64"
COMMANDS = {
    "predict": f"predict {MODEL} --set tp=1 pp=1 dp=8 micro_batch_size=1",
    "plan": f"plan {MODEL}",
    "fit": "fit runs.csv --out own.toml",
}
"""Command lines whose imports are counted."""

IMPORTED = """
import contextlib, io, runpy, sys
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    try:
        runpy.run_module("jaxscale", run_name="__main__")
    except SystemExit as end:
        code = end.code
files = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "jaxscale"]
print(code, *{file for file in files if file}, sep="\\n")
"""


def imported(line: str, folder: str) -> str:
    """Modules of the package that a command line imports, and their lines."""
    table = PACKAGE.parent / "data" / "runs" / "torchtitan.csv"
    rows = table.read_text(encoding="utf-8").splitlines(keepends=True)[:9]
    (Path(folder) / "runs.csv").write_text("".join(rows), encoding="utf-8")
    command = [sys.executable, "-c", IMPORTED, *line.split(), "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    code, *files = done.stdout.split("\n")[:-1]
    if code != "0":
        return f"exit code {code}"
    lines = sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in files)
    return f"{len(files)} modules, {lines:,} lines"


def changed(ref: str) -> Iterator[str]:
    """What grew worse beyond its budget since a commit, one line for each measure of a file."""
    listed = git("diff", "--name-only", "--diff-filter=d", ref, "--", "jaxscale")
    for name in listed.splitlines():
        if not name.endswith(".py"):
            continue
        now = counts_of((ROOT / name).read_text(encoding="utf-8"))
        is_new = not git("ls-tree", "--name-only", ref, "--", name)
        before = None if is_new else counts_of(git("show", f"{ref}:{name}"))
        for column, measure in MEASURES.items():
            if measure.is_broken(now) and (before is None or measure.is_worse(now, before)):
                was = "new" if before is None else f"was {measure.value(before):.2f}"
                yield f"{name}: {column} {measure.value(now):.2f} ({was}, budget {measure.budget:g})"


def git(*arguments: str) -> str:
    """Output of git in the repository."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> int:
    """Print the table, or judge the changed files."""
    columns = "\n".join(f"  {name:8} {measure.meaning}" for name, measure in MEASURES.items())
    imports = "  imports  modules, and all their lines, that a run of predict, plan and fit loads"
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"columns:\n{columns}\n{imports}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--changed", metavar="REF", help="exit 1 where a file changed since REF is worse and over budget"
    )
    parser.add_argument("--imports", action="store_true", help="run predict, plan and fit too, a minute")
    asked = parser.parse_args()
    if asked.changed:
        worse = list(changed(asked.changed))
        sys.stdout.writelines(f"{line}\n" for line in worse)
        return bool(worse)
    folders = by_folder(PACKAGE)
    whole = Counts()
    for counts in folders.values():
        whole.add(counts)
    print("\n".join(table({"jaxscale": whole, **folders})))
    if asked.imports:
        with tempfile.TemporaryDirectory() as folder:
            for name, line in COMMANDS.items():
                print(f"imports of {name}: {imported(line, folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
