"""Shared helpers: arrays, smooth maxima, compilation, files, text tables, printed values, errors, units."""
