"""The commands `jaxscale serving`."""
