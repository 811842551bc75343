"""Engines that a search tries: degrees, copies, formats and batches, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models.transformer import Transformer, total_layers
from jaxscale.serving.engine import WEIGHT_FORMATS, Engine, Requests

BATCH_STEP = 1.15
"""Ratio of one batch of the first search to the next [1]."""

MOST_SEQUENCES = 4096.0
"""Sequences of a copy at most: beyond, schedulers set the limit [1]."""

DECODING_SHARES = tuple(part / 8.0 for part in range(1, 8))
"""Shares of the copies that decode, where prompts have copies of their own [1]."""


@dataclass(frozen=True)
class ServingSpace:
    """Choices that are open.

    Attributes:
        precisions: formats of the weights.
        tp: tensor-parallel degrees; powers of two up to a domain where empty [1].
        pp: pipeline stages [1].
        attention_dp: attention ranks of a mixture of experts; powers of two where empty [1].
        disaggregated: whether prompts may have engines of their own.
    """

    precisions: Sequence[str] = ("bf16",)
    tp: Sequence[int] = ()
    pp: Sequence[int] = (1,)
    attention_dp: Sequence[int] = ()
    disaggregated: bool = True


class EngineTable(NamedTuple):
    """Candidates, one for each combination of degrees, format, split and batch.

    Attributes:
        engine: decoding copies and degrees [candidate].
        requests: loads [candidate].
        n_prefill: copies for prompts alone [1], [candidate].
        precision: place of the format among those of the space [candidate].
    """

    engine: Engine
    requests: Requests
    n_prefill: np.ndarray
    precision: np.ndarray

    def __len__(self) -> int:
        """Candidates [1]."""
        return len(self.n_prefill)


def engine_table(
    model: Transformer,
    n_chips: float,
    domain_size: float,
    space: ServingSpace,
    input_len: float,
    output_len: float,
    batches: np.ndarray | None = None,
) -> EngineTable:
    """Every candidate of a space.

    Args:
        model: the transformer.
        n_chips: chips at hand [1].
        domain_size: chips within which tensor parallelism stays [1].
        space: choices that are open.
        input_len: prompt of a request [token].
        output_len: answer of a request [token].
        batches: sequences of a copy that are tried; a ladder where None [1].

    Returns:
        The candidates.

    Raises:
        InputError: an unknown precision, or no degrees that fit the chips.
    """
    for word in space.precisions:
        if word not in WEIGHT_FORMATS:
            raise InputError(f"precision {word!r} is unknown; expected one of {', '.join(WEIGHT_FORMATS)}")
    powers = [2**k for k in range(int(np.log2(max(n_chips, 1.0))) + 1)]
    heads, depth = float(model.n_heads), float(total_layers(model))
    tps = [tp for tp in (space.tp or powers) if tp <= min(n_chips, domain_size) and heads % tp == 0]
    pps = [pp for pp in space.pp if pp <= depth]
    is_mixture = float(model.n_experts) > 1.0
    dps = list(space.attention_dp or powers) if is_mixture else [1]
    ladder = _ladder() if batches is None else batches
    rows = []
    for place in range(len(space.precisions)):
        for tp in tps:
            for pp in pps:
                for dp in dps:
                    copies = int(n_chips // (tp * pp * dp))
                    rows += [(place, tp, pp, dp, n, prefill) for n, prefill in _splits(copies, space.disaggregated)]
    if not rows:
        raise InputError(f"no engine fits on {n_chips:g} chips; expected tp of {tps or 'a divisor of the heads'}")
    table = np.repeat(np.asarray(rows, dtype=float), len(ladder), axis=0)
    batch = np.tile(ladder, len(rows))
    return _table(table, batch, space, input_len, output_len)


def _ladder() -> np.ndarray:
    count = int(np.log(MOST_SEQUENCES) / np.log(BATCH_STEP)) + 1
    return np.unique(np.round(BATCH_STEP ** np.arange(count + 1)))


def _splits(copies: int, disaggregated: bool) -> list[tuple[int, int]]:
    """Decoding copies and copies for prompts alone; no such copies where each engine does both."""
    splits = [(copies, 0)] if copies else []
    if disaggregated and copies > 1:
        decoding = {min(max(round(copies * share), 1), copies - 1) for share in DECODING_SHARES}
        splits += [(n, copies - n) for n in sorted(decoding)]
    return splits


def _table(
    rows: np.ndarray, batch: np.ndarray, space: ServingSpace, input_len: float, output_len: float
) -> EngineTable:
    place, tp, pp, dp, copies, prefill = rows.T
    words = [WEIGHT_FORMATS[word] for word in space.precisions]
    narrow = np.asarray([1.0 if word in ("fp8", "fp4") else 2.0 for word in space.precisions])
    formats = np.asarray([[1.0 if name == entry[1] else 0.0 for name in PRECISIONS] for entry in words])
    index = place.astype(int)
    engine = Engine(
        tp, pp,
        attention_dp=dp, copies=copies, weight_bytes=np.asarray([entry[0] for entry in words])[index],
        cache_bytes=narrow[index], formats=formats[index], overlap=np.zeros(len(batch)),
        expert_nodes=np.full(len(batch), 1e3),
    )  # fmt: skip
    n, zeros = len(batch), np.zeros(len(batch))
    requests = Requests(
        concurrency=batch * copies, input_len=np.full(n, input_len), output_len=np.full(n, output_len),
        continuous=np.ones(n), at_limit=zeros, disaggregated=(prefill > 0).astype(float), n_requests=zeros,
        prefix_hit=zeros, draft_tokens=zeros, acceptance=np.full(n, 0.7),
    )  # fmt: skip
    return EngineTable(engine, requests, prefill, index)
