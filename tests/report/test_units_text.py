"""Numbers in texts for people have three digits and no exponent."""

import pytest

from jaxscale.base.units import quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9997, "s", "1 s"),
        (999.7, "s", "1000 s"),
        (5206e9, "byte", "5206 GB"),
        (0.0412, "s", "41.2 ms"),
        (9.89e14, "flop/s", "989 Tflop/s"),
        (-2.5e-10, "s", "-2.5e-10 s"),
    ],
)
def test_quantities(value: float, unit: str, text: str):
    assert quantity(value, unit) == text
