"""Formats of training logs, one module for each family of programs."""
