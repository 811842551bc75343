"""How much software stacks differ: what each stack's runs would take if they ran as another stack does.

`fits/scoreboard.py` shows what is found here. A stack that was never fitted is predicted as a typical one, so that its
own pace is an error that no prediction can avoid which has seen none of its runs.
"""

import dataclasses
from functools import cache

import jax
import numpy as np
from calibrate import load_tables
from left_out import log_residuals

from jaxscale.calibration.seen import software_stack
from jaxscale.calibration.store import load_fit
from jaxscale.runs.arrays import Measured, concatenate


def as_if_by(measured: Measured, stack: str, framework: str) -> Measured:
    """The same runs, named as those of another stack; what a release did to their own does not count for it."""
    other = {"source": stack, "framework": framework, "release": "", "release_gpu": ""}
    return dataclasses.replace(measured, levels=measured.levels.replace(np.full(len(measured.batch), True), other))


@cache
def paces() -> dict[str, np.ndarray]:
    """Log of the step time of each stack's median run as each of the other stacks would run it, over measured [stack].

    By the fit that is shipped, which has seen runs of all of them.
    """
    fitted = load_fit()
    everything = concatenate([table for table, _ in load_tables().values()])
    frameworks = dict(zip(everything.levels.column("source"), everything.levels.column("framework"), strict=True))
    stacks = np.asarray([software_stack(source) for source in everything.levels.column("source")])
    names = sorted(set(stacks.tolist()))
    with jax.enable_x64(True):
        as_others = {name: log_residuals(as_if_by(everything, name, frameworks[name]), fitted)[:, 0] for name in names}
    return {
        name: np.asarray([np.median(as_others[other][stacks == name]) for other in names if other != name])
        for name in names
    }
