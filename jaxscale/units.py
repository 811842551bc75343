"""Units at the edges of the package: seconds of longer times, bytes of a gigabyte, joules of a kilowatt-hour."""

HOUR = 3600.0
"""Seconds of an hour [s]."""

DAY = 24.0 * HOUR
"""Seconds of a day [s]."""

YEAR = 365.25 * DAY
"""Seconds of a Julian year [s]."""

GB = 1e9
"""Bytes of a gigabyte [byte]."""

GBIT = 0.125 * GB
"""Bytes of a gigabit [byte]."""

KILOWATT_HOUR = 3.6e6
"""Joules of a kilowatt-hour [J]."""
