"""Compilation of long elementwise programs, and compiled programs kept between processes."""
