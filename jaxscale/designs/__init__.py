"""Shapes, batches and plans for a budget: the design problem, its search and its rounding."""
