"""The wheel: what it contains, and that an installed copy predicts."""

import csv
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

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
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the working tree without a network."""
    pytest.importorskip("hatchling", reason="building the wheel needs hatchling")
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
