"""The demonstration `jaxscale demo`: command, work and report."""
