"""The paper's workload, once for the folder."""

import pytest

from jaxscale.trends.batch_rule import Batch
from jaxscale.trends.deployment_library import deployment, fitted_overlay, unfitted_overlay
from jaxscale.trends.published_scaling import reproduce


@pytest.fixture(scope="session")
def paper():
    """Llama-2 7B on H100 with the fitted hop latencies."""
    return deployment()


@pytest.fixture(scope="session")
def weak():
    """Two sequences per chip."""
    return Batch(per_chip=2.0)


@pytest.fixture(scope="session")
def fitted_answers():
    """Answers with the two fitted latencies."""
    return reproduce(fitted_overlay())


@pytest.fixture(scope="session")
def unfitted_answers():
    """Answers with NCCL's own latencies."""
    return reproduce(unfitted_overlay())
