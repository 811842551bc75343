"""Calibration: coefficients, level effects, prediction intervals and memory limits, stored as TOML."""
