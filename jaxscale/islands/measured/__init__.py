"""Measured and published runs of loosely coupled and unequal chips."""
