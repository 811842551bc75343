"""Laws of the loss fitted to runs, and laws of the critical batch, the model shape and failures."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.laws.approaches import CriticalBatch as CriticalBatch
    from jaxscale.laws.approaches import fit_critical_batch as fit_critical_batch
    from jaxscale.laws.approaches import growth as growth
    from jaxscale.laws.approaches import isoflop_minima as isoflop_minima
    from jaxscale.laws.approaches import optimal_batch as optimal_batch
    from jaxscale.laws.approaches import power_law as power_law
    from jaxscale.laws.backtest import backtest_of as backtest_of
    from jaxscale.laws.backtest import checked_law as checked_law
    from jaxscale.laws.backtest import compare_forms as compare_forms
    from jaxscale.laws.fitted_law import FittedLaw as FittedLaw
    from jaxscale.laws.fitted_law import law_document as law_document
    from jaxscale.laws.fitted_law import load_law as load_law
    from jaxscale.laws.fitted_law import save_law as save_law
    from jaxscale.laws.loss import BatchLaw as BatchLaw
    from jaxscale.laws.loss import ExpertsLaw as ExpertsLaw
    from jaxscale.laws.loss import FailureLaw as FailureLaw
    from jaxscale.laws.loss import LossLaw as LossLaw
    from jaxscale.laws.loss import ShapeLaw as ShapeLaw
    from jaxscale.laws.loss import batch_law as batch_law
    from jaxscale.laws.loss import compute_exponent as compute_exponent
    from jaxscale.laws.loss import experts_law as experts_law
    from jaxscale.laws.loss import failure_law as failure_law
    from jaxscale.laws.loss import loss_law as loss_law
    from jaxscale.laws.loss import shape_law as shape_law
    from jaxscale.laws.loss_fit import fit_law as fit_law
    from jaxscale.laws.loss_reader import Losses as Losses
    from jaxscale.laws.loss_reader import loss_table as loss_table
    from jaxscale.laws.loss_reader import loss_table_names as loss_table_names
    from jaxscale.laws.loss_reader import losses_of as losses_of
    from jaxscale.laws.loss_reader import read_losses as read_losses

public_face(__name__)
