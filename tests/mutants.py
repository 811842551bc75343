"""Planted faults: how many of some random ones the tests catch.

`python tests/mutants.py jaxscale/costs jaxscale/costs/memory.py --count 16 --seed 1 --tests tests/physics tests/costs`
plants 16 faults, one at a time, in a temporary copy of the working tree, and runs the tests on each until the first
fails: an operator exchanged, a factor or a summand dropped, a number a tenth too large, a comparison turned, a minimum
taken for a maximum. It prints a table of the faults, with the test that caught each; faults that no test caught come
last, with the line before and after. Give the fast files first, as every caught fault ends at its first failure. Some
faults change nothing (a factor of one, a tie); only reading tells them apart. pytest does not collect this file.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPERATORS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
COMPARISONS = {ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"), ast.Gt: (">", "<="), ast.GtE: (">=", "<")}
EXTREMES = {"smooth_max": "smooth_min", "larger": "smaller", "maximum": "minimum", "max": "min", "amax": "amin"}
EXTREMES |= {low: high for high, low in EXTREMES.items()}
NOT_NUMBERS = (ast.List, ast.Tuple, ast.JoinedStr, ast.Dict, ast.Set)


@dataclass(frozen=True)
class Mutant:
    """A fault: its file, line and kind, and the text that replaces the source from one offset to another."""

    path: Path
    line: int
    kind: str
    start: int
    end: int
    text: str

    def planted(self, source: str) -> str:
        """The source with the fault."""
        return source[: self.start] + self.text + source[self.end :]


def mutants_of(path: Path) -> list[Mutant]:
    """Every fault that can be planted in a file."""
    source = path.read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr) -> tuple[int, int]:
        """Offsets of an expression; sources are ASCII but for their docstrings, which stand on lines of their own."""
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    found = []
    for node in _physics(ast.parse(source)):
        for kind, start, end, text in _faults(node, span, source):
            found.append(Mutant(path, node.lineno, kind, start, end, text))
    return found


def _physics(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions of function bodies and of constants: no annotations, decorators, messages or indices."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Subscript | ast.arguments):
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from _physics(ast.Expression(child.value))
            continue
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            for statement in child.body:
                yield from _physics(ast.Module([statement], []))
            continue
        if isinstance(child, ast.keyword) and child.arg in ("axis", "default", "static_argnames", "ndim"):
            continue
        if isinstance(child, ast.expr):
            yield child
        yield from _physics(child)


def _faults(node: ast.expr, span, source: str) -> Iterator[tuple[str, int, int, str]]:
    """Kind, offsets and text of each fault that one expression allows."""
    start, end = span(node)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_text(node):
        (left_start, left_end), (right_start, right_end) = span(node.left), span(node.right)
        symbol, other = OPERATORS[type(node.op)]
        between = source[left_end:right_start]
        if between.count(symbol) == 1:
            place = left_end + between.index(symbol)
            yield f"{other} for {symbol}", place, place + 1, other
        product = isinstance(node.op, ast.Mult | ast.Div)
        kind = "factor dropped" if product else "summand dropped"
        yield kind, start, end, f"({source[left_start:left_end]})"
        if isinstance(node.op, ast.Mult | ast.Add):
            yield kind, start, end, f"({source[right_start:right_end]})"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        symbol, other = COMPARISONS[type(node.ops[0])]
        left_end, right_start = span(node.left)[1], span(node.comparators[0])[0]
        place = left_end + source[left_end:right_start].index(symbol)
        yield f"{other} for {symbol}", place, place + len(symbol), other
    elif isinstance(node, ast.Constant) and type(node.value) is float and node.value != 0.0:
        yield "a tenth too large", start, end, repr(node.value * 1.1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in EXTREMES:
            finish = span(node.func)[1]
            yield f"{EXTREMES[name]} for {name}", finish - len(name), finish, EXTREMES[name]


def _is_text(node: ast.BinOp) -> bool:
    """Whether a sum or product is one of texts or sequences."""
    for side in (node.left, node.right):
        if isinstance(side, NOT_NUMBERS) or (isinstance(side, ast.Constant) and isinstance(side.value, str)):
            return True
    return False


def copied_tree(target: Path) -> None:
    """Copy the files of the working tree, those that git ignores left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def verdict(tree: Path, tests: list[str], timeout: float) -> str:
    """Name of the first test that fails in a tree; empty where all pass."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tree / ".compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = os.environ | cache | {"PYTHONPATH": str(tree)}
    try:
        run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "does not end"
    if run.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return failed.group(1) if failed else f"exit code {run.returncode}"


def chosen(paths: list[str], count: int, seed: int) -> list[Mutant]:
    """Random faults, equally many from each path: a long file is no more at fault than a short one."""
    generator = random.Random(seed)
    pools = []
    for path in paths:
        whole = ROOT / path
        files = sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]
        pool = [mutant for file in files for mutant in mutants_of(file)]
        generator.shuffle(pool)
        pools.append(pool)
    drawn = [mutant for round_ in range(count) for pool in pools for mutant in pool[round_ : round_ + 1]]
    return drawn[:count]


def main() -> None:
    """Plant, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", help="files and folders of the package, relative to the repository")
    parser.add_argument("--tests", nargs="+", default=["tests/physics"], help="test files and folders, fast ones first")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one run of the tests")
    parser.add_argument("--list", action="store_true", help="say what would be planted, run nothing")
    asked = parser.parse_args()
    drawn, missed = chosen(asked.paths, asked.count, asked.seed), []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        if not asked.list:
            copied_tree(tree)
            before = verdict(tree, asked.tests, 4.0 * asked.timeout)
            if before:
                raise SystemExit(f"the tests fail without any fault: {before}")
        for number, mutant in enumerate(drawn, start=1):
            name, source = mutant.path.relative_to(ROOT), mutant.path.read_text(encoding="utf-8")
            planted = mutant.planted(source)
            label = f"| {number} | {name}:{mutant.line} | {mutant.kind} |"
            if asked.list:
                print(label, _line(planted, mutant.line))
                continue
            begun = time.monotonic()
            (tree / name).write_text(planted, encoding="utf-8")
            caught = verdict(tree, asked.tests, asked.timeout)
            (tree / name).write_text(source, encoding="utf-8")
            print(label, caught or "MISSED", f"| {time.monotonic() - begun:.0f} s |", flush=True)
            if not caught:
                missed.append((name, mutant, source, planted))
    if not asked.list:
        print(f"\n{len(drawn) - len(missed)} of {len(drawn)} caught")
    for name, mutant, source, planted in missed:
        print(
            f"\n{name}:{mutant.line} ({mutant.kind})\n- {_line(source, mutant.line)}\n+ {_line(planted, mutant.line)}"
        )


def _line(source: str, number: int) -> str:
    return source.splitlines()[number - 1].strip()


if __name__ == "__main__":
    main()
