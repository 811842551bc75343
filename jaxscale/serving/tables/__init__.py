"""Serving tables: columns, reading, rows as arrays."""
