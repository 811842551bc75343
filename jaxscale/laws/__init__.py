"""Laws of loss, fitted to runs; laws of the critical batch, the shape and failures."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.laws.fitting.approaches import growth as growth
    from jaxscale.laws.fitting.approaches import isoflop_minima as isoflop_minima
    from jaxscale.laws.fitting.backtest import backtest_of as backtest_of
    from jaxscale.laws.fitting.backtest import checked_law as checked_law
    from jaxscale.laws.fitting.comparison import compare_forms as compare_forms
    from jaxscale.laws.fitting.fitted_law import FittedLaw as FittedLaw
    from jaxscale.laws.fitting.law_store import law_document as law_document
    from jaxscale.laws.fitting.law_store import load_law as load_law
    from jaxscale.laws.fitting.law_store import save_law as save_law
    from jaxscale.laws.fitting.loss_fit import fit_law as fit_law
    from jaxscale.laws.fitting.optimal_batch import optimal_batch as optimal_batch
    from jaxscale.laws.goodput import FailureLaw as FailureLaw
    from jaxscale.laws.goodput import failure_law as failure_law
    from jaxscale.laws.law_fits import CriticalBatch as CriticalBatch
    from jaxscale.laws.law_fits import fit_critical_batch as fit_critical_batch
    from jaxscale.laws.law_fits import power_law as power_law
    from jaxscale.laws.loss import BatchLaw as BatchLaw
    from jaxscale.laws.loss import ExpertsLaw as ExpertsLaw
    from jaxscale.laws.loss import LossLaw as LossLaw
    from jaxscale.laws.loss import ShapeLaw as ShapeLaw
    from jaxscale.laws.loss import batch_law as batch_law
    from jaxscale.laws.loss import compute_exponent as compute_exponent
    from jaxscale.laws.loss import experts_law as experts_law
    from jaxscale.laws.loss import loss_law as loss_law
    from jaxscale.laws.loss import shape_law as shape_law
    from jaxscale.laws.losses.loss_reader import Losses as Losses
    from jaxscale.laws.losses.loss_reader import losses_of as losses_of
    from jaxscale.laws.losses.loss_reader import read_losses as read_losses
    from jaxscale.laws.losses.loss_tables import loss_table as loss_table
    from jaxscale.laws.losses.loss_tables import loss_table_names as loss_table_names

public_face(__name__)
