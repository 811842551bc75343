"""The worked examples of the documentation, applied to a copy of the package.

A block below the comment `<!-- example: ROLE -->` is a step of the example of its page. Roles:

- `new FILE`: the block is a new file;
- `append FILE`: the block is added at the end of a file;
- `after FILE: LINE`: the block is added below the only line of a file that reads LINE, and as far to the right;
- `before FILE: LINE`: the block is added above that line;
- `run`: the block is a Python program; a block `text` below it is what it prints.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
from pages import ROOT, Block, blocks, with_outputs

COPIED = ("jaxscale", "data", "fits/results")
"""What the package reads when it runs."""


def copy_of_package(folder: Path) -> Path:
    """A copy of the package and its data, in which examples change files."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def steps(page: Path) -> list[tuple[Block, str]]:
    """Blocks with a role, in order, each with the output that the page shows below it."""
    pairs = with_outputs(blocks(page.read_text(encoding="utf-8")))
    return [(block, printed) for block, printed in pairs if block.role]


def apply(block: Block, folder: Path) -> str:
    """Change one file as a step says.

    Returns:
        The file's path from the folder.

    Raises:
        AssertionError: the place of the change is not there, or not there only.
    """
    verb, rest = block.role.split(" ", 1)
    name, _, line = rest.partition(": ")
    path = folder / name
    if verb == "new":
        assert not path.exists(), f"{name} exists already"
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return name
    text = path.read_text(encoding="utf-8")
    if verb == "append":
        path.write_text(text + block.text, encoding="utf-8")
        return name
    assert verb in ("after", "before"), f"unknown role {block.role}"
    places = re.findall(rf"^([ \t]*)({re.escape(line)}\n)", text, flags=re.MULTILINE)
    assert len(places) == 1, f"{name} has {len(places)} lines that read {line!r}; expected one"
    ((indent, anchor),) = places
    added = textwrap.indent(block.text, indent)
    put = indent + anchor + added if verb == "after" else added + indent + anchor
    path.write_text(text.replace(indent + anchor, put), encoding="utf-8")
    return name


def printed_by(block: Block, folder: Path) -> str:
    """What a program prints that runs on the copy of the package, in a process of its own.

    Raises:
        AssertionError: it fails, or imports another copy.
    """
    cache = jax.config.jax_compilation_cache_dir
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_COMPILATION_CACHE_DIR": cache or ""}
    check = f"import jaxscale as _js\nassert _js.__file__.startswith({str(folder)!r}), _js.__file__\n"
    command = [sys.executable, "-c", check + block.text]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
