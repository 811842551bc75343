"""The interactive page of `jaxscale explore`: states, their figures, and the server that shows them."""
