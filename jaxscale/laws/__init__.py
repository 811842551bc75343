"""Laws of loss, fitted to runs; laws of the critical batch, the shape and failures."""

from typing import TYPE_CHECKING

from jaxscale.base.lazy import public_face

if TYPE_CHECKING:
    from jaxscale.laws.fitting.approaches import growth as growth
    from jaxscale.laws.fitting.approaches import isoflop_minima as isoflop_minima
    from jaxscale.laws.fitting.fitted_law import FittedLaw as FittedLaw
    from jaxscale.laws.fitting.optimal_batch import optimal_batch as optimal_batch
    from jaxscale.laws.goodput import FailureLaw as FailureLaw
    from jaxscale.laws.goodput import failure_law as failure_law
    from jaxscale.laws.law_fits import CriticalBatch as CriticalBatch
    from jaxscale.laws.law_fits import fit_critical_batch as fit_critical_batch
    from jaxscale.laws.law_fits import power_law as power_law
    from jaxscale.laws.loss import BatchLaw as BatchLaw
    from jaxscale.laws.loss import LossLaw as LossLaw
    from jaxscale.laws.loss import ShapeLaw as ShapeLaw
    from jaxscale.laws.loss import batch_law as batch_law
    from jaxscale.laws.loss import compute_exponent as compute_exponent
    from jaxscale.laws.loss import loss_law as loss_law
    from jaxscale.laws.loss import shape_law as shape_law
    from jaxscale.laws.losses.loss_reader import Losses as Losses
    from jaxscale.laws.verbs import backtest as backtest
    from jaxscale.laws.verbs import check as check
    from jaxscale.laws.verbs import compare as compare
    from jaxscale.laws.verbs import document as document
    from jaxscale.laws.verbs import fit as fit
    from jaxscale.laws.verbs import load as load
    from jaxscale.laws.verbs import losses as losses
    from jaxscale.laws.verbs import read as read
    from jaxscale.laws.verbs import save as save
    from jaxscale.laws.verbs import table as table
    from jaxscale.laws.verbs import tables as tables

public_face(__name__)
