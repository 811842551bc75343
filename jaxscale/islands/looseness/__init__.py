"""What loose coupling costs in loss and time."""
