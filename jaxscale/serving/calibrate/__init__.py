"""What measured runs tell of serving stacks: coefficients, their fit, intervals."""
