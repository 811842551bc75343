"""Calibration: fit of the cost-model coefficients to measured runs, with effects by source, framework, chip, ..."""
