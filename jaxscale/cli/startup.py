"""Settings that an application may make and a library may not: precision, cache of compiled code, no foreign lines."""

import contextlib
import importlib.util
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
"""Modules of JAX for NVIDIA GPUs, which speak on stderr where there is none."""

FOREIGN = re.compile(r"[IWE]\d{4} |WARNING: All log messages before absl")
"""Beginning of a line that the libraries below JAX write."""


def configure_jax(starts_backend: bool = True) -> None:
    """Compute in double precision; keep compiled programs in the user's cache folder, where it can be made.

    A plugin that finds no chip of its kind is no concern of a user: a command computes on the processor all the same.

    Args:
        starts_backend: whether devices may be asked for, as they may not before processes have found each other.
    """
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.CRITICAL)
    with without_foreign_lines():
        import jax

        if starts_backend and any(importlib.util.find_spec(name) for name in PLUGINS):
            jax.devices()
    from jaxscale._compile.programs import keep_programs

    jax.config.update("jax_enable_x64", True)
    if (folder := cache_folder()) is not None:
        keep_programs(folder)


@contextlib.contextmanager
def without_foreign_lines() -> Iterator[None]:
    """Keep lines of the libraries below JAX from stderr, to which they write past Python; all others come after."""
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (OSError, AttributeError):  # a program that was started without stderr
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines()
            sys.stderr.write("".join(f"{line}\n" for line in lines if not FOREIGN.match(line)))


def cache_folder() -> Path | None:
    """Folder for compiled programs under `XDG_CACHE_HOME` or `~/.cache`; None where it cannot be made."""
    import jax

    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "jaxscale" / f"jax-{jax.__version__}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None
