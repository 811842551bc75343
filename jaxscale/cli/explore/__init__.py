"""The command that serves the interactive page."""
