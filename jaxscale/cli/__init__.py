"""Command line `jaxscale ...`: a module for each command, and the entry point `main`."""
