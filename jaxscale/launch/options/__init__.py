"""Options of training frameworks: which there are, and what the programs refuse."""
