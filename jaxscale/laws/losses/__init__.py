"""Tables of losses: one schema, reading and checks, and the shipped tables by name."""
