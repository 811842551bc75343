"""Statistics that every calibration shares: likelihood, quantiles of left-out groups, effects by level."""
