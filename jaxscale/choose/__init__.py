"""Choosing: plans, shapes and batches for a cluster, and what each limit costs."""
