"""Discrete simulation of requests on one rank of an engine: continuous batching with chunked prompts.

The simulation checks the formulas of `serving_time` and `under_load`. Each step gives every running request a token and
adds waiting prompts up to the token budget, first come, first served. The time of a step is that of `decode_pass`
and `prompts_in_step`; a token reaches its client a step later.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.base.arrays import as_arrays
from jaxscale.base.jit import concrete_jit
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.forward_pass import decode_pass, prefill_pass, prompts_in_step
from jaxscale.serving.serving_coefficients import ServingCoefficients
from jaxscale.serving.serving_time import tokens_yielded


class SimulatedRequests(eqx.Module):
    """Latency of every simulated request; infinite if the simulation had too few steps.

    Attributes:
        ttft: time to the first token [s], [request].
        e2e: time from sending to the last token [s], [request].
        sent: time at which the request was sent [s], [request].
        answers: length of the answer [token], [request].
    """

    ttft: Float[Array, " request"]
    e2e: Float[Array, " request"]
    sent: Float[Array, " request"]
    answers: Float[Array, " request"]

    @property
    def tpot(self) -> Float[Array, " request"]:
        """Time per token after the first [s], [request]."""
        # The first token is in the time to the first token.
        return (self.e2e - self.ttft) / (self.answers - 1.0)

    @property
    def throughput(self) -> Array:
        """Throughput of answer tokens over the run [token/s]."""
        return self.answers.sum() / ((self.sent + self.e2e).max() - self.sent.min())


class _State(eqx.Module):
    """Clock, and for each request the remaining prompt and answer, and the times of sending, first and last token."""

    now: Array
    prompt: Array
    answer: Array
    sent: Array
    first: Array
    last: Array


@concrete_jit
def simulate_requests(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    requests: Requests,
    coefficients: ServingCoefficients,
    arrivals: Float[Array, " request"],
    answers: Float[Array, " request"],
    *,
    places: int,
    n_steps: int,
) -> SimulatedRequests:
    """Discrete simulation of requests on one rank of an engine.

    Args:
        model: the transformer.
        engine: copy of the model; one rank of the copy is simulated, with the token budget of its steps.
        cluster: chips and network.
        requests: prompt, mean answer and cached share; `concurrency` is the client's maximum in flight.
        coefficients: coefficients of the serving software.
        arrivals: times at which requests are ready to be sent, ascending; all zero for a burst or a closed loop [s].
        answers: length of each answer [token].
        places: maximum number of requests in the running batch [1].
        n_steps: maximum number of steps [1].

    Returns:
        Latency of every request.
    """
    model, engine, cluster, r, coefficients = as_arrays((model, engine, cluster, requests, coefficients))
    fresh = r.input_len * (1.0 - r.prefix_hit)
    # Steps at the mean context, as in the formulas under test.
    middle = r.input_len + 0.5 * r.output_len

    def step_of(n: Array) -> Array:
        tokens = 1.0 + r.draft_tokens
        return decode_pass(
            model, engine, cluster, coefficients, n_sequences=n, context=middle, tokens_each=tokens
        ).total  # fmt: skip

    # (running requests,): steps depend on the count alone.
    steps = coefficients.pace * jax.vmap(step_of)(jnp.arange(places + 1.0))
    prompt = {"input_len": fresh, "cached_len": r.input_len - fresh}
    floors = coefficients.pace * prefill_pass(model, engine, cluster, coefficients, n_sequences=1.0, **prompt).floors

    def added(count: Array, prompts: Array) -> Array:
        """Time that prompts, or parts of prompts, add to a step of some running requests [s]."""
        work = prompts_in_step(
            model, engine, cluster, coefficients,
            n_sequences=count, n_prompts=prompts, tokens_each=1.0 + r.draft_tokens, **prompt,
        )  # fmt: skip
        # No graph replays the launches of a pass that takes prompts; an empty engine has no further ones.
        return jnp.where(prompts > 0.0, coefficients.pace * work + floors * (count > 0), 0.0)

    yielded = tokens_yielded(r)
    n = len(arrivals)
    order = jnp.arange(n)
    never = jnp.full(n, jnp.inf)

    def advance(state: _State, _: None) -> tuple[_State, None]:
        answered = (state.last <= state.now).sum()
        # A client sends a request for each answer.
        is_sent = (arrivals <= state.now) & (order < r.concurrency + answered)
        # A client without spare places sends later than the arrival.
        moment = jnp.where(r.concurrency >= n, arrivals, jnp.maximum(arrivals, state.now))
        sent = jnp.where(is_sent & jnp.isinf(state.sent), moment, state.sent)
        is_active = is_sent & jnp.isinf(state.last)
        is_running = is_active & (jnp.cumsum(is_active) <= places)
        is_decoding = is_running & (state.prompt <= 0.0)
        count = is_decoding.sum()
        waiting = jnp.where(is_running, state.prompt, 0.0)
        # Token budget after a token per decoding request, first come, first served.
        taken = jnp.clip(engine.token_budget - count - (jnp.cumsum(waiting) - waiting), 0.0, waiting)
        alone = jnp.where(count > 0, steps[count], floors)
        # An idle engine sleeps until the next request is sent.
        later = jnp.minimum(
            jnp.where(arrivals > state.now, arrivals, jnp.inf).min(),
            jnp.where(state.last > state.now, state.last, jnp.inf).min(),
        )
        end = jnp.where(is_running.any(), state.now + alone + added(count * 1.0, taken.sum() / fresh), later)
        prompt = state.prompt - taken
        # Rounding leaves a rest of the prompt.
        is_first = is_running & (state.prompt > 0.0) & (prompt <= 1e-6 * fresh)
        # The prefill yields the first token.
        answer = state.answer - jnp.where(is_decoding, yielded, 0.0) - is_first
        # A token reaches the client a step later.
        told = end + steps[jnp.maximum(count, 1)] + coefficients.first_token
        first = jnp.where(is_first, told, state.first)
        last = jnp.where(is_running & (answer <= 1e-6) & (is_first | is_decoding), told, state.last)
        prompt = jnp.where(is_first, 0.0, prompt)
        # After the last answer the clock stands still.
        return _State(jnp.where(jnp.isfinite(end), end, state.now), prompt, answer, sent, first, last), None

    start = _State(arrivals[0], jnp.full(n, fresh), answers, never, never, never)
    end = jax.lax.scan(advance, start, length=n_steps)[0]
    return SimulatedRequests(end.first - end.sent, end.last - end.sent, end.sent, answers)
