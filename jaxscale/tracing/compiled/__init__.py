"""Steps compiled ahead of time: what the compiler makes of a JAX function for chips that need not be there."""
