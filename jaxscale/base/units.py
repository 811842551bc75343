"""Units of inputs and outputs: seconds per hour, day and year, bytes per gigabyte, joules per kilowatt-hour."""

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))
"""SI factors and prefixes, the largest first."""

COUNTS = {
    "": (1.0, 1.0), "k": (1e3, 2.0**10), "m": (1e6, 2.0**20), "g": (1e9, 2.0**30), "b": (1e9, 2.0**30),
    "t": (1e12, 2.0**40),
}  # fmt: skip
"""Factors of ten and of two by prefix of a count, in lower case: `4M tokens`, `8k`, `15T` [1]."""

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


def plural(count: float | int, noun: str) -> str:
    """Singular or plural of a noun for a count: `chip` for 1, else `chips`; `copies` of `copy`."""
    if count == 1:
        return noun
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeo" else f"{noun}s"


def quantity(value: float, unit: str) -> str:
    """Text of a quantity with three digits, SI prefix and unit, such as `3.2 s` or `989 Tflop/s`; bytes in GB."""
    if unit == "byte":
        return f"{value / GB:.3g} GB"
    if unit == "s" and abs(value) >= 1000.0:
        # Times have no prefix above a second, and three digits would need an exponent.
        return f"{value:.0f} s"
    for factor, prefix in PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
