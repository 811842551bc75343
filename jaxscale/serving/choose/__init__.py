"""What to serve with, and what to serve: engines under limits, frontiers, designs for a lifetime, rollouts."""
