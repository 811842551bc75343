"""Training steps of well-known models in plain JAX: each function returns a step and the shapes of its arguments."""
