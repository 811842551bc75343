"""Chips, networks and clusters, their catalogue and their power."""
