"""Layer graphs of networks and the times of their layers."""
