"""Settings that an application may make and a library may not: double precision and a cache of compiled code."""

import os
from pathlib import Path


def configure_jax() -> None:
    """Compute in double precision; keep compiled programs in the user's cache folder, where it can be made."""
    import jax

    from jaxscale._compile.programs import keep_programs

    jax.config.update("jax_enable_x64", True)
    if (folder := cache_folder()) is not None:
        keep_programs(folder)


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
