"""The demonstration `jaxscale demo`: its command, the work that it shows, and its report."""
