"""Models, engines and loads that the tests of serving share."""

import jax

import jaxscale as js
from jaxscale import serving

H100 = js.cluster("h100-80gb", 8)
DENSE = js.model("llama3-8b")
LARGE = js.model("llama3-70b")
LATENT = js.model("deepseek-v3")
WINDOWS = js.model("gpt-oss-20b")
USUAL = serving.usual_coefficients()

evaluate = jax.jit(serving.serving_time, static_argnames="temperature")
"""Times of one load, compiled once for all models and loads."""


def times(model, engine, requests, cluster=H100, coefficients=USUAL):
    """Times with every number traced, so that all tests share one program."""
    return evaluate(*jax.tree.map(jax.numpy.asarray, (model, engine, cluster, requests, coefficients)))
