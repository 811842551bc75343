"""The command line, `jaxscale ...`: a module per command, assembled in `main`."""
