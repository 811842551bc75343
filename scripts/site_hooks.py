"""Hooks of the documentation site: pages outside docs/, notebooks, API reference, formulas without a script."""

import ast
import re
from pathlib import Path
from typing import Any

import nbconvert
import nbformat
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "data/README.md", "fits/*.md")
NOTEBOOKS = "notebooks/[0-9]*.ipynb"
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Files of the site: each where the repository has it."""
    sources = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sources}
    contents: dict[str, str | bytes] = dict(texts)
    for path in sorted(ROOT.glob(NOTEBOOKS)):
        contents |= notebook_files(path)
    notebooks = [name for name in contents if name.startswith("notebooks/") and name.endswith(".md")]
    contents["notebooks/index.md"] = index_page("Notebooks", notebooks, contents)
    contents |= reference_pages()
    kept = [file for file in files if not file.src_uri.endswith(".md")]
    kept += [File.generated(config, name, content=content) for name, content in contents.items()]
    linked = {target for name, text in texts.items() for target in linked_files(name, text)} - set(contents)
    kept += [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in sorted(linked)]
    return Files(kept)


def linked_files(page: str, text: str) -> set[str]:
    """Files of the repository, no pages, to which a page links."""
    paths = [(ROOT / page).parent.joinpath(match[1]).resolve() for match in LINK.finditer(text)]
    inside = [path for path in paths if path.is_file() and path.suffix not in (".md", ".ipynb")]
    return {path.relative_to(ROOT).as_posix() for path in inside}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages."""
    return markdown.replace(".ipynb)", ".md)")


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers show by themselves."""
    return FORMULA.sub(lambda match: mathml(unescaped(match[3]), match[2] == "["), html)


def mathml(formula: str, is_block: bool) -> str:
    """A formula in MathML, whose brackets grow with what they hold."""
    return convert(formula, display="block" if is_block else "inline").replace(' stretchy="false"', "")


def unescaped(text: str) -> str:
    """Text of a formula, as it was before it became HTML."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def notebook_files(path: Path) -> dict[str, str | bytes]:
    """Page of a notebook, its stored outputs included, and the images of the page."""
    resources = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    notebook = nbformat.read(path, as_version=4)
    body, made = nbconvert.MarkdownExporter().from_notebook_node(notebook, resources=resources)
    images = {f"notebooks/{name}": content for name, content in made["outputs"].items()}
    return {f"notebooks/{path.stem}.md": body, **images}


def index_page(title: str, names: list[str], contents: dict[str, Any]) -> str:
    """A page of links to others of its folder, by their headings."""
    headings = {name: re.search(r"^# (.+)$", str(contents[name]), flags=re.MULTILINE) for name in names}
    lines = [f"- [{match[1] if match else name}]({Path(name).name})" for name, match in headings.items()]
    return f"# {title}\n\n" + "\n".join(lines) + "\n"


def reference_pages() -> dict[str, str]:
    """A page for the package and for each public sub-package, with every public name where it comes first."""
    pages, packages, first = {}, ["jaxscale"], {}
    for package in packages:
        homes = {f"{home}.{name}": name for name, home in re_exports(package).items()}
        below = sorted(name for name in homes if is_package(name))
        packages += below
        names = sorted((name for name in homes if name not in below), key=lambda name: homes[name].lower())
        lines = [f"- [{name}]({page_of(name)})" for name in below]
        lines += [
            f"- `{homes[name]}`: [{first[name]}]({page_of(first[name])}#{name})" for name in names if name in first
        ]
        entries = [f"::: {name}\n" for name in names if name not in first]
        first |= {name: package for name in names if name not in first}
        summary = ast.get_docstring(ast.parse(init_of(package).read_text(encoding="utf-8"))) or ""
        pages[f"reference/{page_of(package)}"] = "\n".join([f"# {package}\n\n{summary}\n", *lines, "", *entries])
    return pages


def re_exports(package: str) -> dict[str, str]:
    """Home of each public name of a package: its imports of the form `from home import name as name`."""
    nodes = ast.walk(ast.parse(init_of(package).read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname == alias.name}


def init_of(package: str) -> Path:
    """File of a package."""
    return ROOT.joinpath(*package.split("."), "__init__.py")


def is_package(name: str) -> bool:
    """Whether a dotted name is a package."""
    return init_of(name).is_file()


def page_of(package: str) -> str:
    """Name of the page of a package."""
    return "index.md" if package == "jaxscale" else f"{package.removeprefix('jaxscale.')}.md"
