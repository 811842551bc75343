"""Measurement: kernels and collectives timed on the local devices, and the resulting record of the chip."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.measuring.chip_record import ChipRecord as ChipRecord
    from jaxscale.measuring.chip_record import chip_record as chip_record
    from jaxscale.measuring.chip_record import fitted_matmuls as fitted_matmuls
    from jaxscale.measuring.measured_devices import Measurement as Measurement
    from jaxscale.measuring.measured_devices import measure_devices as measure_devices

public_face(__name__)
