"""The verbs of this package under their short names: `js.laws.read`, `js.laws.fit`, `js.laws.table` and so on."""

from jaxscale.laws.fitting.backtest import backtest_of, checked_law
from jaxscale.laws.fitting.comparison import compare_forms
from jaxscale.laws.fitting.law_store import law_document, load_law, save_law
from jaxscale.laws.fitting.loss_fit import fit_law
from jaxscale.laws.losses.loss_reader import losses_of, read_losses
from jaxscale.laws.losses.loss_tables import loss_table, loss_table_names

read, table, tables, losses = read_losses, loss_table, loss_table_names, losses_of
fit, check, backtest, compare = fit_law, checked_law, backtest_of, compare_forms
save, load, document = save_law, load_law, law_document
