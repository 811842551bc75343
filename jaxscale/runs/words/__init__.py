"""Words of runs tables as people and tools write them."""
