"""Commands for inputs of users: models, logs and launch files."""
