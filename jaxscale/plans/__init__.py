"""Parallel plans for a given model and cluster: enumerated, scored, chosen, explained."""
