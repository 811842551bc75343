"""Settings of the whole suite: 64-bit numbers, compilation in little time and memory, repeatable random examples."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import figure_boxes
import jax
import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")


# Most of the time goes to compiling programs that run a few times. The environment is for subprocesses.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
if jax.__version_info__[:2] == (0, 10):
    # As in `jaxscale.base.jit`, for programs that tests compile; a release that lacks the option would not start.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

# Programs are kept by JAX's own cache, in pytest's folder, so that a test sees each compilation.
os.environ["JAXSCALE_CACHE"] = "off"

TOGETHER = ("tests/fit", "tests/limits", "tests/trends")
"""Folders whose files share what takes long to make: one process runs all of them."""

LONGEST = (
    "tests/fit",
    "tests/cli/test_cli_demo.py",
    "03_choosing_shape_batch_and_plan",
    "05_hardware_scaling_trends",
    "tests/limits",
    "tests/designs/test_best_design.py",
    "tests/designs/test_shape.py",
    "04_limits_of_scaling",
    "02_calibrating_your_cluster",
    "tests/cli/test_cli_fit.py",
    "tests/test_gradients.py",
)
"""What takes longest comes first, so that no process is left with it alone at the end."""

ROOMY = 1.5e9
"""Memory of the process beyond which compiled programs are dropped between two files [byte]."""


def pytest_configure(config: pytest.Config) -> None:
    """Double precision throughout; compiled functions outlive a run in pytest's own cache folder."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    cache = getattr(config, "cache", None)
    if cache is not None:
        folder = str(cache.mkdir("compiled"))
        os.environ |= {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def work_unit(nodeid: str) -> str:
    """What one process runs as a whole: a folder of `TOGETHER`, one notebook, or a file."""
    file, _, test = nodeid.partition("::")
    if file.endswith("test_notebooks.py") and "[" in test:
        return test.partition("[")[2].rstrip("]")
    return next((folder for folder in TOGETHER if file.startswith(f"{folder}/")), file)


class ByWorkUnit(LoadScopeScheduling):
    """Hand out whole work units, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByWorkUnit:
    """Two processes share the suite by work units."""
    return ByWorkUnit(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest work units first, and the tests of each together."""
    units = [work_unit(item.nodeid) for item in items]
    order = {unit: place for place, unit in enumerate(dict.fromkeys([*LONGEST, *units]))}
    items.sort(key=lambda item: order[work_unit(item.nodeid)])


@pytest.fixture(scope="session", autouse=True)
def figures_watched() -> None:
    """Texts of every figure that any test draws lie inside it, and none covers another."""
    figure_boxes.watch()


@pytest.fixture(scope="module", autouse=True)
def memory_returned() -> Iterator[None]:
    """After each file, give back to the system what the compiler has freed; where much is left, programs too."""
    yield
    if returned() > ROOMY:
        jax.clear_caches()
        returned()


def returned() -> float:
    """Memory of the process after freed memory went back to the system [byte]; none where the system cannot tell."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        return 0.0
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return float(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="session")
def llama_config() -> dict[str, object]:
    """The config.json of a model that all libraries know: Llama-3.1 8B."""
    return {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
