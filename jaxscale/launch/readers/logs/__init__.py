"""Formats of training logs, a module per family of programs."""
