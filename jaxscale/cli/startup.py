"""Settings that an application may make and a library may not: double precision."""


def configure_jax() -> None:
    """Compute in double precision."""
    import jax

    jax.config.update("jax_enable_x64", True)
