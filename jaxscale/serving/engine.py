"""Engines for inference and their requests: the inputs of all functions of serving.

An engine is a copy of the weights on tp x pp x attention_dp chips. Experts spread over all chips of a pipeline stage.
"""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike

from jaxscale.base.arrays import Number, PerPrecision, as_float
from jaxscale.base.domains import Bound, Domain
from jaxscale.base.errors import InputError, one_like
from jaxscale.base.show import Printout, leaf_text, printed
from jaxscale.hardware.formats import PRECISIONS

WEIGHT_FORMATS = {
    "fp32": (4.0, "fp32"),
    "bf16": (2.0, "bf16"),
    "fp16": (2.0, "bf16"),
    "fp8": (1.0, "fp8"),
    # Integers take the bytes of floats of equal width. A100 and older multiply 8-bit weights, as fp8, in 16 bits.
    "int8": (1.0, "fp8"),
    # NVFP4, NVIDIA 2025: 4 bits and an 8-bit scale for each block of 16 weights.
    "fp4": (0.5 + 1.0 / 16.0, "fp4"),
    # Groups of 128 4-bit weights with a 16-bit scale (AWQ, arXiv 2306.00978), multiplied in 16 bits.
    "int4": (0.5 + 2.0 / 128.0, "bf16"),
}
"""Stored bytes of a weight [byte] and the format of its matmuls, by the word of a table."""

CACHE_FORMATS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625}
"""Stored bytes of an element of the key/value cache, by the word of a table [byte]."""

ANY_NUMBER = 1e9
"""Running sequences that a scheduler without a bound admits to a rank [1]."""

TOKEN_BUDGET = 8192.0
"""Usual tokens of a step where prompts wait: max_num_batched_tokens of vLLM on large chips, max_num_tokens of
TensorRT-LLM, chunked_prefill_size of SGLang on chips of 80 GB [token]."""

MEMORY_SHARE = 0.92
"""Usual share of the memory that weights, cache and buffers take: TensorRT-LLM gives the cache 0.9 of the memory left
by weights [1]."""

USUAL_GROUPS = 100.0
"""Usual distinct prefixes of a benchmark: 64 in the client of SGLang (gsp-num-groups, 0.5, 2025), 150 in the guides of
llm-d (inference-perf, 2025) [1]."""

DEGREE, SHARE = Bound(1.0, 1e12), Bound(0.0, 1.0)

ENGINE = Domain(
    "Engine",
    {
        "tp": DEGREE._replace(meaning="tensor-parallel degree"),
        "pp": DEGREE._replace(meaning="pipeline stages"),
        "attention_dp": DEGREE._replace(meaning="ranks with the attention of their own sequences"),
        "copies": DEGREE._replace(meaning="engines side by side"),
        "weight_bytes": Bound(0.0, 1e3, True, "bytes of a weight"),
        "cache_bytes": Bound(0.0, 1e3, True, "bytes of an element of the cache"),
        "overlap": SHARE._replace(meaning="share of the collectives that may hide"),
        "expert_nodes": Bound(1.0, 1e12, False, "domains to which a token is sent at most"),
        "max_sequences": Bound(1.0, 1e12, False, "running sequences of a rank"),
        "token_budget": Bound(1.0, 1e12, False, "tokens of a step where prompts wait"),
        "mixed_passes": SHARE._replace(meaning="1 where prompts and running sequences share a pass"),
        "memory_share": Bound(0.0, 1.0, True, "share of the memory for weights, cache and buffers"),
    },
)
"""Valid numbers of an `Engine`."""

REQUESTS = Domain(
    "Requests",
    {
        "concurrency": Bound(0.0, 1e12, False, "requests in flight"),
        "input_len": Bound(1.0, 1e9, meaning="prompt [token]"),
        "output_len": Bound(1.0, 1e9, meaning="answer [token]"),
        "continuous": SHARE._replace(meaning="1 where requests join a running batch"),
        "at_limit": SHARE._replace(meaning="1 where more requests wait than memory admits"),
        "disaggregated": SHARE._replace(meaning="1 where prompts have engines of their own"),
        "n_requests": Bound(0.0, 1e12, False, "requests of the benchmark; 0 for a stream without end"),
        "prefix_hit": SHARE._replace(meaning="share of prompt tokens that are cached"),
        "prefix_groups": Bound(0.0, 1e12, False, "distinct prefixes; 0 where the stated share is cached in any case"),
        "draft_tokens": Bound(0.0, 1e3, False, "tokens guessed ahead"),
        "acceptance": SHARE._replace(meaning="probability that a guessed token is right"),
        "request_rate": Bound(0.0, 1e9, False, "requests that arrive [1/s]; 0 where clients wait for answers"),
        "gap_variance": Bound(0.0, 1e3, False, "squared coefficient of variation of the gaps between arrivals"),
        "length_variance": Bound(0.0, 1e3, False, "squared coefficient of variation of the lengths"),
        "lengths_open": SHARE._replace(meaning="1 where lengths vary in a way that is not stated"),
    },
)
"""Valid numbers of `Requests`."""


@printed(lambda engine: _shown(engine))
class Engine(eqx.Module):
    """Copies of a model and the distribution of each copy over chips.

    Attributes:
        tp: tensor-parallel degree [1].
        pp: pipeline stages [1].
        attention_dp: ranks with the attention of separate sequences and shared experts [1].
        copies: number of parallel engines [1].
        weight_bytes: stored size of a weight of the layers [byte].
        cache_bytes: stored size of an element of the key/value cache [byte].
        formats: share of the matmuls in each number format [1].
        overlap: largest share of the collectives hidden behind the work on the second half of the batch [1].
        expert_nodes: maximum number of domains to which a token is sent [1].
        max_sequences: maximum number of running sequences that the scheduler admits to a rank [1].
        token_budget: tokens of a step if prompts wait [token].
        mixed_passes: 1 where a pass takes prompts and running sequences together, 0 for separate passes [1].
        memory_share: share of the memory of a chip for weights, cache and buffers [1].
    """

    tp: Number
    pp: Number
    attention_dp: Number
    copies: Number
    weight_bytes: Number
    cache_bytes: Number
    formats: PerPrecision
    overlap: Number
    expert_nodes: Number
    max_sequences: Number
    token_budget: Number
    mixed_passes: Number
    memory_share: Number

    def __init__(
        self,
        tp: Any = 1,
        pp: Any = 1,
        *,
        attention_dp: Any = 1,
        copies: Any = 1,
        precision: str = "bf16",
        cache_precision: str | None = None,
        weight_bytes: Any = None,
        cache_bytes: Any = None,
        formats: Any = None,
        overlap: Any = 0.0,
        expert_nodes: Any = 1e3,
        max_sequences: Any = ANY_NUMBER,
        token_budget: Any = TOKEN_BUDGET,
        mixed_passes: Any = 1.0,
        memory_share: Any = MEMORY_SHARE,
    ):
        """Engine from degrees and words; sizes and formats default to those of the words.

        Raises:
            InputError: a precision that is not in the tables of this module.
        """
        stored, computed = _entry("precision", precision, WEIGHT_FORMATS)
        self.tp, self.pp, self.attention_dp, self.copies = map(as_float, (tp, pp, attention_dp, copies))
        self.weight_bytes = stored if weight_bytes is None else as_float(weight_bytes)
        usual_cache = usual_cache_bytes(precision)
        stored_cache = _entry("cache_precision", cache_precision, CACHE_FORMATS) if cache_precision else usual_cache
        self.cache_bytes = stored_cache if cache_bytes is None else cache_bytes
        # Words become switches: all rows stack, and a single program evaluates all rows.
        one_hot = [1.0 if name == computed else 0.0 for name in PRECISIONS]
        self.formats = as_float(formats) if formats is not None else _row(one_hot)

        self.overlap, self.expert_nodes, self.mixed_passes = map(as_float, (overlap, expert_nodes, mixed_passes))
        self.max_sequences, self.token_budget = map(as_float, (max_sequences, token_budget))
        self.memory_share = as_float(memory_share)

    def __check_init__(self):
        """Refuse numbers out of range; traced values are not checked."""
        ENGINE.check(vars(self))

    @property
    def n_chips(self) -> Number:
        """Number of chips of all copies [1]."""
        return self.tp * self.pp * self.attention_dp * self.copies


def usual_cache_bytes(precision: str) -> float:
    """Usual size of an element of the key/value cache by format of the weights: 1 for fp8 and fp4, else 2 [byte]."""
    return 1.0 if precision in ("fp8", "fp4") else 2.0


def _row(values: list[float]) -> ArrayLike:
    return np.asarray(values)


def _entry(argument: str, word: str, table: dict[str, Any]) -> Any:
    if word not in table:
        raise InputError(f"{argument} = {word!r} is unknown; {one_like(word, table)}")
    return table[word]


@printed(lambda requests: _shown(requests))
class Requests(eqx.Module):
    """Load of requests on engines.

    Attributes:
        concurrency: requests in flight over all copies, as kept by the clients; the batch size of a static batch; the
            clients' maximum for an open stream [1].
        input_len: S_in, length of a prompt [token].
        output_len: S_out, length of an answer [token].
        continuous: 1 for continuous batching, 0 for a static batch whose requests start together [1].
        at_limit: 1 where more requests wait than memory and scheduler admit, 0 where `concurrency` is the limit [1].
        disaggregated: 1 for prompts on separate engines [1].
        n_requests: requests of the benchmark; 0 for an endless stream [1].
        prefix_hit: share of prompt tokens with cached keys and values; with `prefix_groups` an upper bound [1].
        prefix_groups: distinct prefixes among the requests, which compete for the memory of the cache; 0 where the
            stated share is always cached [1].
        draft_tokens: draft tokens per step, by speculation or multi-token prediction [1].
        acceptance: acceptance probability of a draft token [1].
        request_rate: arrival rate at all copies of an open stream; 0 for clients that wait for answers [1/s].
        gap_variance: squared coefficient of variation of the gaps between arrivals: 1 Poisson, 0 constant [1].
        length_variance: squared coefficient of variation of the lengths of requests [1].
        lengths_open: 1 for lengths of unstated variation; the `length_spread` of a fit then applies [1].
    """

    concurrency: Number = eqx.field(converter=as_float)
    input_len: Number = eqx.field(converter=as_float)
    output_len: Number = eqx.field(converter=as_float)
    continuous: Number = eqx.field(converter=as_float, default=1.0)
    at_limit: Number = eqx.field(converter=as_float, default=0.0)
    disaggregated: Number = eqx.field(converter=as_float, default=0.0)
    n_requests: Number = eqx.field(converter=as_float, default=0.0)
    prefix_hit: Number = eqx.field(converter=as_float, default=0.0)
    prefix_groups: Number = eqx.field(converter=as_float, default=0.0)
    draft_tokens: Number = eqx.field(converter=as_float, default=0.0)
    acceptance: Number = eqx.field(converter=as_float, default=0.7)
    request_rate: Number = eqx.field(converter=as_float, default=0.0)
    gap_variance: Number = eqx.field(converter=as_float, default=1.0)
    length_variance: Number = eqx.field(converter=as_float, default=0.0)
    lengths_open: Number = eqx.field(converter=as_float, default=0.0)

    @property
    def is_open(self) -> Number:
        """1 for an open stream, with arrivals independent of the answers, else 0 [1]."""
        return (self.request_rate > 0.0) * 1.0

    @property
    def is_closed(self) -> Number:
        """1 for a closed loop, in which clients keep a number of requests in flight, else 0 [1]."""
        return (1.0 - self.is_open) * (1.0 - self.at_limit)

    def __check_init__(self):
        """Refuse numbers out of range; traced values are not checked."""
        REQUESTS.check(vars(self))


def _shown(module: Engine | Requests) -> Printout:
    """Fields of an engine or of requests; ranges for many."""
    fields = {name: getattr(module, name) for name in module.__dataclass_fields__}
    rows = [(name, leaf_text(value)) for name, value in fields.items() if np.any(np.asarray(value) != 0.0)]
    return Printout(type(module).__name__, ("", ""), rows)
