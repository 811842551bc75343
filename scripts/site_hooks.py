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
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "THIRD_PARTY.md", "docs/*.md", "data/README.md", "fits/*.md")
STYLE = "assets/site.css"
LONG_FORMULA = 40
"""Characters from which a formula in a line may be wider than a phone [1]."""
NOTEBOOKS = "notebooks/[0-9]*.ipynb"
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: Any) -> Any:
    """Navigation with the notebooks below their gallery, and the packages below the reference."""
    notebooks = [f"notebooks/{path.stem}.md" for path in sorted(ROOT.glob(NOTEBOOKS))]
    below = {"docs/gallery.md": notebooks}
    below["reference/index.md"] = [f"reference/{package_page(name)}" for name in public_packages()[1:]]
    config.nav = [
        {title: [page, *below.get(page, ())] if isinstance(page, str) else page for title, page in entry.items()}
        for entry in config.nav
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Files of the site: each where the repository has it."""
    sources = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sources}
    contents: dict[str, str | bytes] = dict(texts)
    for path in sorted(ROOT.glob(NOTEBOOKS)):
        contents |= notebook_files(path)
    contents |= reference_pages()
    kept = [file for file in files if not file.src_uri.endswith(".md")]
    kept += [File.generated(config, name, content=content) for name, content in contents.items()]
    linked = {target for name, text in texts.items() for target in linked_files(name, text)} - set(contents)
    kept += [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in sorted(linked)]
    kept.append(File.generated(config, STYLE, abs_src_path=str(Path(__file__).with_name("site.css"))))
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
    """A formula in MathML, whose brackets grow with their content; a long one scrolls where the page is narrow."""
    element = convert(formula, display="block" if is_block else "inline").replace(' stretchy="false"', "")
    if is_block:
        return f'<div class="formula">{element}</div>'
    return f'<span class="formula">{element}</span>' if len(formula) > LONG_FORMULA else element


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


def reference_pages() -> dict[str, str]:
    """Pages of the API: of each public package its names, and of each of its modules what they do."""
    pages: dict[str, str] = {}
    packages = public_packages()
    # Sub-packages first, so that a name which the root lists as well stands with its neighbours.
    where: dict[str, str] = {}
    for package in reversed(packages):
        for name in public_names(package):
            where.setdefault(name, module_page(package, name))
    for package in packages:
        pages[f"reference/{package_page(package)}"] = list_of_names(package, packages, where)
    for page in sorted(set(where.values())):
        names = [name for name in where if where[name] == page]
        pages[f"reference/{page}"] = description_of_names(page.removesuffix(".md"), sorted(names, key=own_name))
    return pages


def description_of_names(module: str, names: list[str]) -> str:
    """Page of a module or folder: what its names do, below links to the lists of them."""
    package = module.rpartition(".")[0]
    lists = dict.fromkeys(("[jaxscale](index.md)", f"[{package}]({package_page(package)})"))
    head = f"# {module}\n\nListed in {', '.join(lists)}.\n\n{docstring_of(module)}\n"
    return "\n".join([head, *(f"::: {name}\n" for name in names)])


def own_name(name: str) -> str:
    """Last part of a full name, in lower case, by which names are sorted."""
    return name.rpartition(".")[2].lower()


def public_packages() -> list[str]:
    """The package and its public sub-packages, each after the one that lists it."""
    packages = ["jaxscale"]
    for package in packages:
        packages += sorted(name for name in exports(package) if is_package(name))
    return packages


def public_names(package: str) -> list[str]:
    """Full names of the classes and functions of a package."""
    return [name for name in exports(package) if not is_package(name)]


def exports(package: str) -> list[str]:
    """Full names of what a package makes public, each where it is defined."""
    names = [f"{home}.{name}" for name, home in re_exports(package).items()]
    return [name if is_package(name) else definition(name) for name in names]


def re_exports(module: str) -> dict[str, str]:
    """Home of each name that a module imports in the form `from home import name as name`."""
    nodes = ast.walk(ast.parse(file_of(module).read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname == alias.name}


def definition(name: str) -> str:
    """Full name of a class or function in the module that defines it."""
    home, _, own = name.rpartition(".")
    further = re_exports(home).get(own)
    return name if further is None else definition(f"{further}.{own}")


def is_package(name: str) -> bool:
    """Whether a full name is that of a package."""
    return ROOT.joinpath(*name.split("."), "__init__.py").is_file()


def list_of_names(package: str, packages: list[str], where: dict[str, str]) -> str:
    """Page of a package: its sub-packages, and its names by module with the first sentence of each."""
    lines = [f"# {package}\n\n{docstring_of(package)}\n"]
    below = [name for name in packages if name.rpartition(".")[0] == package]
    lines += [f"- [`{name}`]({package_page(name)}): {first_sentence(name)}" for name in below]
    names = public_names(package)
    for page in sorted({where[name] for name in names}):
        lines.append(f"\n## {page.removesuffix('.md').removeprefix('jaxscale.').strip('_')}\n")
        mine = sorted((name for name in names if where[name] == page), key=own_name)
        lines += [f"- [`{n.rpartition('.')[2]}`]({page}#{n}): {first_sentence(n)}" for n in mine]
    return "\n".join([*lines, ""])


def package_page(package: str) -> str:
    """File of the page of a package."""
    return "index.md" if package == "jaxscale" else f"{package.removeprefix('jaxscale.')}.md"


def module_page(package: str, name: str) -> str:
    """File of the page on which a name of a package is described: that of its module or folder."""
    owner = package if name.startswith(f"{package}.") else "jaxscale"
    return f"{owner}.{name.removeprefix(f'{owner}.').split('.')[0]}.md"


def file_of(name: str) -> Path:
    """File of a package or of a module; of any other name that of its longest prefix that is one."""
    path = ROOT.joinpath(*name.split("."))
    if is_package(name):
        return path / "__init__.py"
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else file_of(name.rpartition(".")[0])


def docstring_of(name: str) -> str:
    """Docstring of a package, a module, a class or a function."""
    tree = ast.parse(file_of(name).read_text(encoding="utf-8"))
    own = name.rpartition(".")[2]
    bodies = [node for node in tree.body if getattr(node, "name", "") == own]
    return ast.get_docstring(bodies[0] if bodies else tree) or ""


def first_sentence(name: str) -> str:
    """First line of a docstring."""
    return docstring_of(name).partition("\n")[0]
