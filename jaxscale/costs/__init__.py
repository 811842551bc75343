"""One physical cost term per module; each is a function of model, plan, cluster and coefficients, in seconds."""
