"""How far training can scale: limits set by data movement and latency, and what would move them."""
