"""Writers of plans as launch settings of frameworks."""
