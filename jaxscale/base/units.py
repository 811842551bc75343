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
    if noun.endswith("y") and noun[-2] not in "aeo":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("ch") else f"{noun}s"


def in_digits(value: float, digits: int = 3) -> str:
    """Text of a number with the given digits, without exponent below a million."""
    # From 10^digits on, format g would write an exponent.
    plain = f"{value:.{digits}g}"
    return f"{value:.0f}" if 10**digits <= abs(float(plain)) < 1e6 else plain


def quantity(value: float, unit: str) -> str:
    """Text of a quantity with three digits, SI prefix and unit, such as `3.2 s` or `989 Tflop/s`; bytes in GB."""
    if unit == "byte":
        return f"{in_digits(value / GB)} GB"
    # 999.7 ms are 1 s.
    rounded = float(f"{value:.3g}")
    if unit == "s" and abs(rounded) >= 1000.0:
        # Times have no prefix above a second.
        return f"{value:.0f} s"
    factor, prefix = next((one for one in PREFIXES if abs(rounded) >= one[0]), (1.0, ""))
    return f"{in_digits(rounded / factor)} {prefix}{unit}"
