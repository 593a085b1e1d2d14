"""One BLAS thread in local solvers, and what it costs to have it."""

import sys
import types

from threadpoolctl import threadpool_info, threadpool_limits

from flwr_fco.core import computing as threads
from flwr_fco.core.computing import single_threaded_blas


def blas_threads():
    return {info["filepath"]: info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


def test_blas_has_one_thread_within_the_block_and_what_it_had_after_it():
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        with single_threaded_blas():
            assert set(blas_threads().values()) == {1}
            with single_threaded_blas():
                assert threads.depth
            assert set(blas_threads().values()) == {1}
        assert blas_threads() == before
        assert not threads.depth


def test_libraries_are_looked_for_again_once_a_module_has_come(monkeypatch):
    looks = []
    real = threads.ThreadpoolController
    monkeypatch.setattr(threads, "ThreadpoolController", lambda: looks.append(1) or real())
    monkeypatch.setattr(threads, "_searched", None)
    for _ in range(3):
        with single_threaded_blas():
            pass
    assert len(looks) == 1
    monkeypatch.setitem(sys.modules, "comes_with_its_own_blas", types.ModuleType("comes_with_its_own_blas"))
    with single_threaded_blas():
        pass
    assert len(looks) == 2
