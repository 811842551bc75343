"""Plans as launch settings of frameworks."""
