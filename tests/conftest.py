"""Settings of the whole suite: 64-bit numbers, compilation in little time and memory, repeatable random examples."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")


# Most of the time goes to compiling programs that run a few times. The environment is for subprocesses.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
if jax.__version_info__[:2] == (0, 10):
    # As `jaxscale._compile` has it, for what tests compile themselves; a release that lacks the option would not start.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

LONGEST = (
    "test_notebooks",
    "test_cli_demo",
    "test_fit_fitting",
    "test_best_design",
    "test_shape",
    "test_fit_posterior",
    "test_cli_fit",
    "test_gradients",
    "test_cli_shape",
    "test_limits_transformer",
)
"""Files that take longest, which come first: none is left for one of two processes alone at the end."""

ROOMY = 1.0e9
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


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
