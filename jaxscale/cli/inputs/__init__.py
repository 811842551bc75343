"""Commands of what people bring: models, logs and launch files."""
