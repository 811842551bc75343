"""Launch files and logs of training frameworks: readers to rows of a runs table, writers of plans as settings."""
