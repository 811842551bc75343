"""Settings of the whole suite: 64-bit numbers, a compilation cache between runs, repeatable random examples."""

import os

import jax
import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("repeatable")


if jax.__version_info__[:2] == (0, 10):
    # As `jaxscale._compile` has it, for what tests compile themselves; a release that lacks the option would not start.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"


def pytest_configure(config: pytest.Config) -> None:
    """Double precision throughout; compiled functions outlive a run in pytest's own cache folder."""
    jax.config.update("jax_enable_x64", True)
    cache = getattr(config, "cache", None)
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache.mkdir("compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
