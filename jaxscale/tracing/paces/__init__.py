"""Paces of traced workloads, fitted to the rows of a runs table that name one."""
