"""Cost terms of traced workloads: kernels on one chip, collectives of dimension classes."""
