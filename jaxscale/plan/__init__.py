"""Parallel plans: their fields and words, derived local quantities, and the rules that they keep."""
