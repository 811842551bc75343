"""Plans of bursts: shares of a batch by layer."""
