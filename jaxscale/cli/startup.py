"""Process-wide settings of the command line: double precision, garbage collection, foreign lines on stderr, signals."""

import atexit
import contextlib
import gc
import importlib.util
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
"""Modules of JAX for NVIDIA GPUs, which speak on stderr where there is none."""

FOREIGN = re.compile(r"[IWE]\d{4} |WARNING: All log messages before absl")
"""Beginning of a line that the libraries below JAX write."""

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""Exit codes of commands that a signal has stopped, by the convention of shells."""

NEW_OBJECTS = 100_000
"""New objects after which Python looks for garbage: imports make many and hardly any garbage [1]."""


def collect_rarely() -> None:
    """Reduce the frequency of garbage collection, a tenth of the time of a short command."""
    # A tenth of the time of a short command.
    gc.set_threshold(NEW_OBJECTS)
    # Frozen objects are left out of the last search for garbage.
    atexit.register(gc.freeze)


def configure_jax(starts_backend: bool = True) -> None:
    """Enable double precision in JAX, and suppress warnings about missing devices.

    Args:
        starts_backend: whether devices may be queried, which must wait until distributed processes are connected.
    """
    # Plugins without a chip warn; a command then computes on the processor.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.CRITICAL)
    with without_foreign_lines():
        import jax

        # The plugin speaks when devices are first queried, here unheard.
        if starts_backend and any(importlib.util.find_spec(name) for name in PLUGINS):
            jax.devices()
    # Fits and searches need double precision.
    jax.config.update("jax_enable_x64", True)


@contextlib.contextmanager
def without_foreign_lines() -> Iterator[None]:
    """Context without log lines of C++ libraries below JAX on stderr; further lines are printed afterwards."""
    try:
        sys.stderr.flush()
        # Libraries in C write to file descriptor 2, not to sys.stderr.
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
            # Restored before the kept lines are printed.
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines()
            sys.stderr.write("".join(f"{line}\n" for line in lines if not FOREIGN.match(line)))


@contextlib.contextmanager
def stopped_by_signal() -> Iterator[None]:
    """Context with SystemExit raised on SIGTERM, for the removal of temporary files."""
    # As in tests and notebooks' threads.
    if threading.current_thread() is not threading.main_thread():
        yield  # Python takes signals in the main thread alone
        return
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, _: Any) -> None:
    del number
    raise SystemExit(TERMINATED)
