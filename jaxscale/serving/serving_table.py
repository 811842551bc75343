"""Serving tables: reader, checks, and the meaning, valid values and defaults of columns."""

from collections.abc import Collection, Iterator

import numpy as np

from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.checks import shape_checks
from jaxscale.runs.schema import MAX_BATCH, Runs
from jaxscale.runs.shapes import Shapes
from jaxscale.serving.engine import CACHE_FORMATS, USUAL_GROUPS, WEIGHT_FORMATS
from jaxscale.serving.serving_coefficients import serving_facts
from jaxscale.serving.serving_rows import stated_shapes
from jaxscale.serving.under_load import PERCENTILES
from jaxscale.tables.cells import SHAPE, Column, Names
from jaxscale.tables.reader import AnyTable, read
from jaxscale.tables.schema import (
    AbstractSchema,
    CellProblems,
    Check,
    Header,
    Headings,
    headings_in,
    in_units_of_columns,
)
from jaxscale.tables.table import AbstractTable

MAX_LENGTH = 1e8
"""Maximum number of tokens of a request; a larger number is a typing error [token]."""

SERVING_KINDS = {
    "static": "one batch, all start together",
    "online": "a client keeps requests in flight",
    "offline_max": "all requests wait; the engine picks the batch",
    "disagg": "prompts on engines of their own",
}
"""Kinds of serving by the word of a table."""


ARRIVALS = {
    "poisson": "independent of each other, at a rate",
    "constant": "at equal gaps, at a rate",
    "burst": "all requests at once",
    "closed": "a client keeps `concurrency` in flight",
}
"""Arrivals of requests by the word of a table."""

OTHER_WORDS = {
    "nvfp4": "fp4", "mxfp4": "fp4", "fp8_block": "fp8", "fp8-block": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    "w8a8": "int8", "w8a16": "int8", "w4a16": "int4", "w4a8": "int4", "awq": "int4", "gptq": "int4", "half": "fp16",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32", "16": "bf16", "8": "fp8", "4": "int4",
    "offline": "offline_max", "throughput": "offline_max", "max": "offline_max", "server": "online",
    "latency": "static", "disaggregated": "disagg", "mha": "gqa", "mqa": "gqa", "deterministic": "constant",
    "uniform": "constant", "batch": "burst", "concurrent": "closed",
}  # fmt: skip
"""Synonyms of tools for formats, kinds of serving and of attention, and the words of tables."""


MEASURES = {
    "ttft": "time to the first token",
    "tpot": "time per token after the first",
    "e2e": "time to the last token",
}
"""Times with percentiles in a table, by the first word of their columns."""


def _size(name: str, meaning: str, default: str = "", maximum: float = 1e8, minimum: int = 1) -> Column:
    required = not default
    return Column(
        name, "integer", meaning, "1", default or "the row is incomplete", required, minimum=minimum, maximum=maximum
    )


def _word(name: str, meaning: str, known: Collection[str], default: str) -> Column:
    words = {word: word for word in known} | {other: word for other, word in OTHER_WORDS.items() if word in known}
    return Column(name, "name", f"{meaning}: {', '.join(known)}", default=default, words=words)


def _length(name: str, meaning: str) -> Column:
    return Column(name, "number", meaning, "token", "the row is incomplete", True, minimum=1, maximum=MAX_LENGTH)


def _time(name: str, meaning: str) -> Column:
    return Column(name, "number", meaning, "s", "not measured", maximum=1e7)


SERVING_COLUMNS = (
    Column("source", "text", "where the row comes from; one name per table"),
    Column("source_row", "text", "place in the source"),
    Column("model", "text", "name of the model; a catalogue name fills the shape columns"),
    Column("framework", "name", "serving framework"),
    Column("release", "text", "release of the framework"),
    Column("gpu", "chip", "catalogue id of the chip", "", "the row is incomplete", True),
    _size("n_gpus", "chips of all copies", "tp pp dp"),
    _size("tp", "tensor-parallel degree", "n_gpus / (pp dp)"),
    _size("pp", "pipeline stages", "1"),
    _size("ep", "chips over which the experts spread", "tp dp, or tp where dp are copies"),
    _size("dp", "attention data parallelism of a mixture of experts; copies of others, and where a copy fits", "1"),
    _word("precision", "format of the weights", WEIGHT_FORMATS, "bf16"),
    _word("kv_precision", "format of the cache", CACHE_FORMATS, "that of the framework, else fp8 below 16 bits"),
    _word("serving", "kind of serving", SERVING_KINDS, "online, static with a batch"),
    _size("batch_size", "sequences in flight", "the concurrency", MAX_BATCH),
    _size("concurrency", "requests that the client keeps in flight", "as many as the engine takes", MAX_BATCH),
    _length("input_len", "prompt of a request"),
    _length("output_len", "answer of a request"),
    _size("n_requests", "requests of the benchmark", "a stream without end", MAX_BATCH),
    _word("arrival", "arrivals of requests", ARRIVALS, "poisson with a rate, else closed or burst, as `serving` says"),
    Column("request_rate", "number", "requests that arrive at all copies", "1/s", "clients wait", maximum=1e9),
    Column(
        "length_cv",
        "amount",
        "coefficient of variation of the lengths",
        "1",
        "0 where the mean lengths are whole, else that of the fit",
        maximum=30.0,
    ),
    Column(
        "prefix_share",
        "share",
        "share of a prompt that other requests have too, and that is cached if it fits",
        "1",
        "0",
    ),
    Column("prefix_hit", "share", "share of prompt tokens that are cached", "1", "prefix_share, as memory allows"),
    _size("prefix_groups", "distinct prefixes that the requests share", f"{USUAL_GROUPS:.0f}", MAX_BATCH),
    _size("draft_tokens", "tokens guessed ahead in each step", "not recorded", 1e3, minimum=0),
    Column("acceptance", "share", "probability that a guessed token is right", "1", "0.7"),
    _size("max_sequences", "running sequences that the scheduler admits to a rank", "that of the framework", MAX_BATCH),
    _size("token_budget", "tokens of a step where prompts wait", "that of the framework, else 8192", MAX_BATCH),
    Column("memory_share", "share", "share of a chip for weights, cache, buffers", "1", "that of the framework"),
    _time("ttft_s", "time to the first token"),
    _time("tpot_s", "time per token after the first"),
    _time("e2e_latency_s", "time from arrival to the last token"),
    *(
        Column(
            name, "amount", f"{name[-5:-2]} of the requests: {MEASURES[name[:-6]]}", "s", "not measured", maximum=1e7
        )
        for name in PERCENTILES
    ),
    Column(
        "output_tokens_per_s_total", "number", "answer tokens of all copies", "token/s", "not measured", maximum=1e10
    ),
    Column(
        "total_tokens_per_s",
        "number",
        "prompt and answer tokens of all copies",
        "token/s",
        "not measured",
        maximum=1e11,
    ),
    Column("peak_mem_gb", "number", "peak memory of a chip", "1e9 byte", "not measured", maximum=1e6),
    Column("status", "name", "ok, oom, suspect (not fitted) or incomplete", default="ok"),
    Column("notes", "text", "remarks"),
    _size("n_layers", "depth", "from the catalogue model", 1e5),
    _size("d_model", "width", "from the catalogue model", 1e7),
    _size("n_heads", "query heads", "from the catalogue model", 1e6),
    _size("n_kv_heads", "key/value heads", "from the catalogue model, else n_heads", 1e6),
    _size("head_dim", "width of a head", "from the catalogue model, else d_model / n_heads", 1e6),
    _size("d_ff", "width of the dense MLP, 0 for none", "from the catalogue model, else 4 d_model", minimum=0),
    _size("vocab_size", "vocabulary", "from the catalogue model, else 51200"),
    _size("n_experts", "experts of a mixture layer", "from the catalogue model, else 1", 1e6),
    _size("moe_top_k", "experts of a token", "from the catalogue model, else 1", 1e6),
    _size("d_ff_expert", "width of an expert", "from the catalogue model, else d_ff"),
    _word("attention", "kind of attention", serving_facts()["attention"], "from the catalogue model, else gqa"),
)
"""Columns of a serving table, in the order of the shipped tables."""

SERVING_BY_NAME = {column.name: column for column in SERVING_COLUMNS}
SERVING_REQUIRED = ("gpu", "input_len", "output_len")
"""Required columns beside the columns of a model: its name, or `SHAPE`."""


class ServingSchema(AbstractSchema[Runs]):
    """Schema of tables of measured or planned serving."""

    columns = SERVING_BY_NAME
    row = "measurement"
    says_nothing = ("source_row", "notes")

    @classmethod
    def further_headings(cls) -> Headings:
        """Alternative names of columns, and units, of common tools and of people."""
        return headings_in(("names", "serving_names"), SERVING_COLUMNS)

    def in_units(self, cells: AbstractTable, header: Header) -> AbstractTable:
        """Cells converted to the units of the columns."""
        return in_units_of_columns(cells, header)

    def lacks(self, header: Header) -> str:
        """Message about absent required columns, with a model or its shape required; empty for none."""
        missing = self.missing(header, (*SERVING_REQUIRED, *SHAPE), dict.fromkeys(SHAPE, ("model",)))
        if not missing:
            return ""
        least = f"{', '.join(SERVING_REQUIRED)} and model (or {', '.join(SHAPE)})"
        runs = "a table of training runs is read by `jaxscale predict`"
        other = self.told_elsewhere(header, ("names",), ("seq_len", "global_batch_size_seqs", "step_time_s"), runs)
        return f"{missing}; expected at least {least}{other}"

    def table(self, table: AbstractTable, header: Header, problems: CellProblems) -> Runs:
        """Table of runs with the cells unchanged."""
        del header, problems
        return Runs.of(table)

    def checks(self, table: Runs) -> list[Check]:
        """Checks of degrees against chips, arrivals against rates, and sizes of a model against valid ranges."""
        chips = table.numbers("n_gpus")
        tp, pp = (np.nan_to_num(table.numbers(name), nan=1.0) for name in ("tp", "pp"))
        few_chips = Check(
            chips < tp * pp,
            lambda row: (
                f"column 'n_gpus' = '{chips[row]:.15g}': fewer than tp*pp = {tp[row]:g}*{pp[row]:g}; expected "
                f"at least {tp[row] * pp[row]:g}"
            ),
        )
        arrivals, rate = table.categories("arrival"), table.numbers("request_rate")
        is_stream = arrivals.matches(lambda word: word in ("poisson", "constant"))
        is_other = arrivals.matches(lambda word: word in ("burst", "closed"))
        no_rate = Check(
            is_stream & ~(rate > 0.0),
            lambda _: "column 'request_rate' is empty: arrivals at a rate have one; expected a number above 0",
        )
        no_stream = Check(
            is_other & ~np.isnan(rate),
            lambda row: (
                f"column 'request_rate' = '{rate[row]:.15g}': bursts and closed loops have no rate; "
                "expected it empty, or arrival poisson or constant"
            ),
        )
        static = Check(
            ~np.isnan(rate) & table.categories("serving").matches(lambda word: word in ("static", "disagg")),
            lambda row: (
                f"column 'request_rate' = '{rate[row]:.15g}': static and disagg serving have no arrivals here; "
                "expected it empty, or serving online"
            ),
        )
        return [
            few_chips,
            no_rate,
            no_stream,
            static,
            *shape_checks(Shapes(np.arange(len(table)), stated_shapes(table))),
        ]

    def row_problems(self, table: Runs, bad: Collection[int]) -> Iterator[dict[int, list[str]]]:
        """Problems of valid cells by row: contradictions, and unknown models in a table without shape columns."""
        yield from super().row_problems(table, bad)
        if not all(name in table.columns for name in SHAPE):
            judged = table.categories("model").matches(bool)
            judged[list(bad)] = False
            yield self.unknown_models(table, judged)


def read_serving(table: AnyTable, *, skip_bad: bool = False, hardware: Hardware | None = None) -> Runs:
    """Read a serving table and check it against the catalogues, `js.serving.read_serving("serving.csv")`.

    Args:
        table: path of a CSV file, UTF-8, comma-separated, with a header, or a further argument of `js.read_runs`. A
            table already read is returned unchanged.
        skip_bad: drop bad rows instead of refusing the file.
        hardware: chips that the table may name; the shipped catalogue where None.

    Raises:
        InputError: the file cannot be read as a serving table, or has bad rows; with `skip_bad`, if all are bad.
    """
    return table if isinstance(table, Runs) else read(table, ServingSchema(Names.of(hardware)), skip_bad=skip_bad)
