"""Chips, networks and clusters: modules of numbers, catalogue, number formats."""
