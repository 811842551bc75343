"""Frame of a command: parsing of arguments, error messages, and progress display."""
