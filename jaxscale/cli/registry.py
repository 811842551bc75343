"""What the command line takes from wings, by name: core imports none of them."""

LAUNCH_TEXT = "jaxscale.launch.writers.launch_text:launch_text"
"""Function that writes a plan as launch settings."""

WRITERS = "jaxscale.launch.writers.launch_text:WRITERS"
"""Frameworks for which settings are written."""
