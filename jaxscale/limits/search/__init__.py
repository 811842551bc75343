"""Search for the fastest design of the frontier model."""
