"""Statistics common to all calibrations: Student likelihood, mixed effects, quantiles of held-out errors."""
