"""Launch files and logs of training programs: read as rows of runs tables, written from plans."""
