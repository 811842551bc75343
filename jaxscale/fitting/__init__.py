"""Calibration: coefficients fitted to measured runs, with effects by source, framework, chip, precision and kernel."""
