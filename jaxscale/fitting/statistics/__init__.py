"""Statistics common to all calibrations: likelihood, quantiles of left-out groups, effects by level."""
