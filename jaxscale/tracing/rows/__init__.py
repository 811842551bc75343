"""Rows of runs tables that name a traced workload in place of a model."""
