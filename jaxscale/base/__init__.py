"""Helpers of all parts: arrays, smooth maxima, compilation, files, tables of text, printed values, errors, units."""
