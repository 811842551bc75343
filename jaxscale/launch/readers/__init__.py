"""Readers of training logs and launch files of frameworks, as rows of a runs table."""
