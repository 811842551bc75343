"""The command line, `jaxscale ...`: one module for each command, put together in `main`."""
