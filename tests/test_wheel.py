"""The wheel: what it contains, and that an installed copy predicts."""

import csv
import re
import runpy
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import jaxscale as js

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = (
    "jaxscale/__init__.py",
    "jaxscale/_data/hardware.toml",
    "jaxscale/_data/models.toml",
    "jaxscale/_data/coefficients.toml",
    "jaxscale/_data/licences.toml",
    "jaxscale/_data/README.md",
    "jaxscale/_data/frameworks.toml",
    "jaxscale/_data/runs/vtrain_a100_ground_truth.csv",
    "jaxscale/_data/runs/vtrain_a100_ground_truth.toml",
    "jaxscale/_data/companion/collectives.csv",
    "jaxscale/_data/losses/gemstones.csv",
    "jaxscale/_data/losses/tables.toml",
    "jaxscale/_data/law_priors.toml",
)
ABSENT = (
    "tests",
    "notebooks",
    "benchmarks",
    "restricted",
    "chinchilla_besiroglu",
    "mamf_matmul_peak",
    "ml_engineering",
    "nvidia_dgxc_benchmarking.csv",
    "paper_tables_misc.csv",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the working tree without a network."""
    for name in ("hatchling", "hatch_fancy_pypi_readme"):
        pytest.importorskip(name, reason=f"building the wheel needs {name}")
    folder = tmp_path_factory.mktemp("wheel")
    code = f"import hatchling.build as b; print(b.build_wheel({str(folder)!r}))"
    built = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.split()[-1]


@pytest.fixture(scope="module")
def contents(wheel: Path) -> list[str]:
    """Names of the files inside."""
    return zipfile.ZipFile(wheel).namelist()


def test_data_and_fits_are_inside(contents: list[str]):
    assert not set(SHIPPED) - set(contents)
    assert [name for name in contents if name.startswith("jaxscale/_fits/") and name.endswith(".toml")]
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "jaxscale").rglob("*.py")}
    assert modules <= set(contents)


def test_tests_notebooks_and_restricted_tables_are_not(contents: list[str]):
    assert not [name for name in contents if any(word in name for word in ABSENT)]
    roots = {name.split("/")[0] for name in contents}
    assert all(root == "jaxscale" or root.endswith(".dist-info") for root in roots)
    assert (ROOT / "data" / "restricted").is_dir(), "the check above would be empty"


REPOSITORY = "https://github.com/jaxscale/jaxscale"
FILES = (
    f"{REPOSITORY}/blob/v{js.__version__}/",
    f"{REPOSITORY.replace('github', 'raw.githubusercontent')}/v{js.__version__}/",
)
"""Addresses of the files of the release: pages, and pictures as they are."""


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What a package index reads of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def dead_links(description: str) -> list[str]:
    """Links of a description that lead nowhere without a repository beside it, or to a file that is not in it."""
    targets = re.findall(r"\]\(([^)\s]+)\)", description)
    return [target for target in targets if not target.startswith("https://") or not file_of(target).exists()]


def file_of(address: str) -> Path:
    """File of the repository behind an address of the release; for any other address the repository itself."""
    for files in FILES:
        if address.startswith(files):
            return ROOT / address.removeprefix(files).partition("#")[0]
    return ROOT


def test_links_of_the_description_lead_to_files_of_the_release(metadata: Message):
    description = metadata.get_payload()
    assert isinstance(description, str) and description.startswith("# jaxscale\n")
    assert not dead_links(description)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert description.count("](") == readme.count("](") == len(dead_links(readme))
    assert dead_links(f"[a]({FILES[0]}docs/absent.md) ![b]({FILES[1]}README.md)") == [f"{FILES[0]}docs/absent.md"]


def test_the_metadata_say_where_and_under_which_licences(metadata: Message, contents: list[str]):
    assert metadata["Version"] == js.__version__
    assert all(REPOSITORY in address for address in metadata.get_all("Project-URL", []))
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-4.0 AND MIT AND BSD-3-Clause"
    texts = {"LICENSE", "THIRD_PARTY.md", *(f"LICENSES/{name}.txt" for name in ("BSD-3-Clause", "CC-BY-4.0", "MIT"))}
    assert set(metadata.get_all("License-File", [])) == texts
    inside = {name.split(".dist-info/licenses/")[-1] for name in contents if ".dist-info/licenses/" in name}
    assert inside == texts


def licences_of(expression: str) -> set[str]:
    """Licences that an SPDX expression joins."""
    return set(expression.split(" AND "))


def without_text(licences: set[str]) -> set[str]:
    """Licences whose text the repository lacks."""
    texts = {"Apache-2.0": ROOT / "LICENSE"}
    return {name for name in licences if not texts.get(name, ROOT / "LICENSES" / f"{name}.txt").is_file()}


def test_the_wheel_is_under_the_licences_of_its_tables():
    """Negative control: a licence that forbids a part, or that nobody read, has no text here."""
    tables = tomllib.loads((ROOT / "data" / "licences.toml").read_text(encoding="utf-8"))["tables"]
    of_tables = set().union(*(licences_of(entry["licence"]) for entry in tables.values() if entry["permissive"]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert licences_of(project["license"]) == of_tables
    assert not without_text(of_tables)
    assert without_text({"MIT", "CC-BY-SA-4.0", "not seen"}) == {"CC-BY-SA-4.0", "not seen"}


def test_attributions_are_those_of_the_licences():
    program = ROOT / "scripts" / "third_party.py"
    written = runpy.run_path(str(program))["third_party_text"]()
    assert (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8") == written
    assert "runs/torchtitan.csv" in written and "restricted/" not in written


def test_tools_of_the_repository_are_no_extras(metadata: Message):
    extras = set(metadata.get_all("Provides-Extra", []))
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    assert {"bayes", "explore", "tables"} <= extras
    assert not extras & {*groups, "dev"}


def test_the_wheel_is_small(wheel: Path):
    assert 50e3 < wheel.stat().st_size < 5e6


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of a fresh environment with the wheel in it; the dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    # Dependencies come last, so that the package itself can only be the installed one.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the fresh interpreter away from the repository and without its paths."""
    command = [str(python), "-I", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


def test_the_installed_package_finds_its_own_data(python: Path, tmp_path: Path):
    code = "import jaxscale as js; print(js.__file__, js.chip('h100-80gb').max_power, js.model('llama3-8b').d_model)"
    done = run(python, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    file, power, width = done.stdout.split()
    assert Path(file).is_relative_to(python.parents[1])
    assert (float(power), float(width)) == (700.0, 4096.0)


def test_the_installed_command_predicts(python: Path, tmp_path: Path):
    runs = ROOT / "data" / "runs" / "vtrain_a100_ground_truth.csv"
    lines = runs.read_text(encoding="utf-8").splitlines()[:6]
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = "import sys; from jaxscale.cli.main import main; sys.exit(main())"
    done = run(python, "-c", command, "predict", "data.csv", "--out", "out.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    assert all(0.0 < float(row["predicted_step_time_s"]) < 1e4 for row in rows)
    assert all(
        float(row["predicted_step_time_lo_s"])
        < float(row["predicted_step_time_s"])
        < float(row["predicted_step_time_hi_s"])
        for row in rows
    )
    refused = run(python, "-c", command, "predict", "absent.csv", "--out", "none.csv", cwd=tmp_path)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert not (tmp_path / "none.csv").exists()
