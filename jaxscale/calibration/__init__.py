"""Calibration: coefficients, effects of levels, intervals, limits of memory; on disk as TOML."""
