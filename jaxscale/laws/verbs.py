"""The verbs of this package under their short names: `js.laws.read`, `js.laws.fit`, `js.laws.table` and so on."""

from jaxscale.laws.fitting.backtest import backtest_of as backtest
from jaxscale.laws.fitting.backtest import checked_law as check
from jaxscale.laws.fitting.comparison import compare_forms as compare
from jaxscale.laws.fitting.law_store import law_document as document
from jaxscale.laws.fitting.law_store import load_law as load
from jaxscale.laws.fitting.law_store import save_law as save
from jaxscale.laws.fitting.loss_fit import fit_law as fit
from jaxscale.laws.losses.loss_reader import losses_of as losses
from jaxscale.laws.losses.loss_reader import read_losses as read
from jaxscale.laws.losses.loss_tables import loss_table as table
from jaxscale.laws.losses.loss_tables import loss_table_names as tables

__all__ = ["backtest", "check", "compare", "document", "fit", "load", "losses", "read", "save", "table", "tables"]
