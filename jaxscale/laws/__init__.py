"""Laws of loss, critical batch, shape and failures."""

from typing import TYPE_CHECKING

from jaxscale._lazy import public_face

if TYPE_CHECKING:
    from jaxscale.laws.goodput import FailureLaw as FailureLaw
    from jaxscale.laws.goodput import failure_law as failure_law
    from jaxscale.laws.law_fits import CriticalBatch as CriticalBatch
    from jaxscale.laws.law_fits import LossFit as LossFit
    from jaxscale.laws.law_fits import fit_critical_batch as fit_critical_batch
    from jaxscale.laws.law_fits import fit_loss_law as fit_loss_law
    from jaxscale.laws.law_fits import power_law as power_law
    from jaxscale.laws.loss import BatchLaw as BatchLaw
    from jaxscale.laws.loss import LossLaw as LossLaw
    from jaxscale.laws.loss import ShapeLaw as ShapeLaw
    from jaxscale.laws.loss import batch_law as batch_law
    from jaxscale.laws.loss import compute_exponent as compute_exponent
    from jaxscale.laws.loss import loss_law as loss_law
    from jaxscale.laws.loss import shape_law as shape_law

public_face(__name__)
