"""One BLAS thread, as local solvers have it: small factorisations only lose by more."""

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def one_blas_thread():
    with threadpool_limits(1):
        yield
