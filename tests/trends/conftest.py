"""The paper's workload, once for the folder."""

import pytest

from jaxscale.trends.deployment_library import deployment
from jaxscale.trends.measured_series import reproduce
from jaxscale.trends.outcome import Batch


@pytest.fixture(scope="session")
def paper():
    """Llama-2 7B on H100 by PyTorch FSDP."""
    return deployment()


@pytest.fixture(scope="session")
def weak():
    """Two sequences per chip."""
    return Batch(per_chip=2.0)


@pytest.fixture(scope="session")
def answers():
    """Answers to the published figures."""
    return reproduce()
