"""Two workers for all tests that do not kill them: each takes a second to start."""

import pytest

from flwr_fco.simulation import Processes


@pytest.fixture(scope="package")
def workers():
    with Processes(2) as both:
        yield both
