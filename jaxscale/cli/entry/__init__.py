"""What happens before and around a command: its arguments, refusals, and what is shown while it works."""
