"""The command `jaxscale law`: fit laws of loss, predict, find optima, compare forms."""
