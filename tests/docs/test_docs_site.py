"""The documentation site and the release: what a checkout can tell of them without their extras."""

import re
import subprocess

from pages import ROOT

from jaxscale.base.lazy import public_homes

SITE = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def pages_of(navigation: str) -> set[str]:
    """Pages that a navigation leads to."""
    return set(re.findall(r"^ +- (?:[\w' ]+: )?([\w/]+\.md)$", navigation.split("\nnav:\n")[1], flags=re.MULTILINE))


def unreachable(navigation: str) -> set[str]:
    """Pages of the documentation to which a navigation does not lead."""
    return {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - pages_of(navigation)


def test_the_navigation_is_complete():
    assert not unreachable(SITE)
    made = {"reference/index.md"}
    assert all((ROOT / page).is_file() for page in pages_of(SITE) - made)
    assert unreachable(SITE.replace("docs/choose.md", "docs/chosen.md")) == {"docs/choose.md"}


def test_public_names_are_imports_that_the_reference_sees():
    # scripts/site_hooks.py lists every import of this form; the public face reads those of one block.
    for init in (ROOT / "jaxscale").rglob("__init__.py"):
        text = init.read_text(encoding="utf-8")
        listed = set(re.findall(r"^ *from [\w.]+ import (\w+) as \1$", text, flags=re.MULTILINE))
        assert set(public_homes(text)) <= listed, init


def test_the_release_refuses_what_it_does_not_know():
    script = [str(ROOT / "scripts" / "release.sh"), "--publish"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "expected --out DIR or --upload" in done.stderr
