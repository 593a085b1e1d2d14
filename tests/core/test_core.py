"""What all else stands on: layouts, specifications, types of options, generators, threads, and the sum over replies."""

import json
import os
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from problems import refused
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from flwr_fco.algorithms.contract.replies import Mean, weighted_sum
from flwr_fco.core import computing
from flwr_fco.core.computing import logger, quiet
from flwr_fco.core.layout import Layout, SparseVector, dense
from flwr_fco.core.spec import Spec
from flwr_fco.core.validation import checked, describe
from flwr_fco.errors import FlwrFcoError, SpecError
from flwr_fco.messages.protocol import Uplink
from flwr_fco.regularizers import L1, Nuclear, PerParameter, Regularizer
from flwr_fco.simulation import grid

# --- named arrays to one flat vector and back -------------------------------------------------------------------------


ACTED_ON = [
    ({"coefficients": (5,), "intercept": (1,)}, None, ("coefficients",)),
    ({"0": (3, 5), "1": (3,)}, None, ("0",)),
    ({"0": (5,), "1": (1,)}, None, ("0",)),
    ({"0": (5,), "1": (1,)}, "*", ("0", "1")),
    ({"0": (5,), "1": (4,)}, None, ("0", "1")),
    ({"x": (3,), "y": (1,)}, None, ("x", "y")),
    ({"layer.bias": (3,), "dense/bias": (3,), "['a']['bias']": (1,), "layer.gain": (3,)}, None, ("layer.gain",)),
    ({"a.weight": (2, 2), "b.weight": (2, 2)}, ["b.*"], ("b.weight",)),
    ({"a.kernel": (2, 2), "stack.bias": (2, 2), "gain": (2,)}, None, ("a.kernel",)),
    ({"['a']['w']": (2, 2), "['b']['w']": (2, 2), "": (2,)}, ["['b']['w']", ""], ("['b']['w']", "")),
]


@pytest.mark.parametrize(("shapes", "apply_to", "expected"), ACTED_ON)
def test_where_psi_acts(shapes, apply_to, expected):
    layout = Layout.from_arrays({n: np.zeros(s) for n, s in shapes.items()}, apply_to=apply_to)
    assert layout.regularized_names == expected
    for entry in layout.optimized:
        assert (layout.regularized_mask()[entry.block] == (entry.name in expected)).all()


ERRORS = [
    (lambda: Layout.from_arrays({"n": np.arange(3)}), "no floating-point array"),
    (lambda: Layout.from_arrays({"w": np.array(["a"])}), "dtype <U1"),
    (lambda: Layout.from_arrays({"w": np.zeros(2, complex)}), "dtype complex128"),
    (lambda: Layout.from_arrays({"w": np.zeros(2)}, apply_to="v*"), "matches none"),
    (lambda: Layout.from_arrays({"w": np.zeros(2)}, pass_through=["v*"]), "pass_through='v.*' matches none"),
    (lambda: Layout.from_arrays({"w": np.zeros(2)}, apply_to=5), "apply_to=5 is an int; expected a sequence"),
    (lambda: Layout.from_arrays({"w": np.zeros(2)}).flatten({}), "'w' is missing"),
    (lambda: Layout.from_arrays({"w": np.zeros(2)}).flatten({"w": np.zeros(3)}), r"shape \(3,\), expected \(2,\)"),
    (lambda: Layout.from_arrays({"w": np.zeros(2)}).unflatten(np.zeros(3)), r"expected \(2,\)"),
    (lambda: Layout.from_header([("w", [6], "i4,i4", True, True)]), "a numeric dtype"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors_name_the_value(call, message):
    refused(message, call, kind=ValueError)


def test_byte_order_and_memory_order_do_not_matter_and_masks_pass_through():
    given = {"w": np.asfortranarray(np.arange(6.0).reshape(2, 3)).astype(">f8"), "b": np.float32([0.1])}
    given["mask"] = np.array([True, False])
    layout = Layout.from_arrays(given)
    assert_array_equal(layout.flatten(given)[:6], np.arange(6.0))
    assert layout["w"].dtype == "float64"
    back = layout.unflatten(layout.flatten(given))
    assert (list(back), back["b"].dtype, back["b"]) == (["w", "b"], np.float32, given["b"])
    assert [entry.name for entry in layout.passed_through] == ["mask"]


# --- specifications ---------------------------------------------------------------------------------------------------


PLAIN = L1(1.0).to_spec().header


def test_equality_sees_arrays_and_numbers():
    some = {
        L1(0.5),
        L1(0.6),
        L1(0.5, weights=np.array([1.0, 2.0])),
        L1(0.5, weights=np.array([2.0, 1.0])),
        L1(0.5, weights=np.array([[1.0, 2.0]])),
        PerParameter({"a*": L1(0.5, weights=np.array([1.0, 2.0])), "b": Nuclear(0.1)}),
    }
    assert len(some) == 6
    assert some == {Regularizer.from_spec(psi.to_spec()) for psi in some}


BAD_SPECS = [
    ({"family": "regularizer", "kind": "magic"}, "unknown regularizer 'magic'; known here:.*l1"),
    ({**PLAIN, "power": 2}, "no argument power"),
    ({"family": "regularizer", "kind": "l1"}, "lacks bound, strength, weights"),
    ({**PLAIN, "strength": {"$array": "strength"}}, "did not come with it"),
    ({**PLAIN, "strength": {"__class__": "os.system"}}, "not part of a spec"),
    ({"kind": "l1"}, "not a specification"),
    ("l1", "not a specification"),
    ({"family": "mirror map", "kind": "euclidean"}, "expected a Regularizer"),
]


@pytest.mark.parametrize(("header", "message"), BAD_SPECS)
def test_bad_specs_are_refused(header, message):
    refused(message, Regularizer.from_spec, Spec(header, {}), kind=SpecError)


@pytest.mark.parametrize("kind", ["$list", "$set", "$mapping", "$bytes", "$sparse", "$layout", ""])
def test_what_is_nested_too_deeply_is_refused(kind):
    for depth in (1, 900):
        opening, closing = (f'{{"{kind}":', "}") if kind else ("[", "]")
        with pytest.raises(FlwrFcoError):
            Regularizer.from_spec(Spec({**PLAIN, "strength": json.loads(opening * depth + "1" + closing * depth)}, {}))


def test_a_class_without_a_name_cannot_travel():
    @dataclass(frozen=True)
    class Nameless(L1):
        kind: ClassVar[str] = ""

    refused("has no registered name", Nameless(1.0).to_spec, kind=SpecError)
    plain = type("Plain", (Regularizer,), {"kind": "plain", "value": len})()
    refused(r"Plain is no dataclass; put @dataclass\(frozen=True\) above it", hash, plain, kind=SpecError)


# --- types of options -------------------------------------------------------------------------------------------------


class Alias:
    """What `type Vector[T] = np.ndarray[tuple[Any, ...], np.dtype[T]]` makes, which older Pythons cannot say."""

    __value__ = np.ndarray[tuple[Any, ...], np.dtype[Any]]


def test_an_alias_is_what_it_stands_for():
    kind: Any = GenericAlias(Alias(), (np.float64,))
    given = np.ones(2)
    assert checked("weights", given, kind | None) is given
    assert checked("weights", None, kind | None) is None
    assert describe(kind) == "an array"
    refused("an array", checked, "weights", "many", kind)


# --- threads and generators -------------------------------------------------------------------------------------------


def blas_threads():
    return {info["filepath"]: info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


@pytest.fixture
def two_blas_threads():
    limit = ThreadpoolController().limit(limits=2, user_api="blas")
    # The main thread gives up the right to set it, so that others may.
    with threadpool_limits():
        pass
    yield
    limit.restore_original_limits()


SETTINGS = {"BLAS": (computing.single_threaded_blas, blas_threads), "log": (lambda: quiet(50), lambda: logger.level)}
if grid.TaskIdentity:
    SETTINGS["run"] = (lambda: grid.identity(7), grid._identity)


@pytest.mark.parametrize(("block", "read"), SETTINGS.values(), ids=SETTINGS)
def test_what_a_run_sets_in_its_process_stays_while_a_thread_needs_it(block, read, two_blas_threads):
    """Two runs at a time, of which the first is the shorter one: bits, log and messages of the other do not change."""
    before, theirs = read(), block()
    with ThreadPoolExecutor(1) as other, ExitStack() as mine:
        mine.enter_context(block())
        inside = read()
        with block():
            other.submit(theirs.__enter__).result()
        mine.close()
        assert other.submit(read).result() == inside != before
        other.submit(theirs.__exit__, None, None, None).result()
    assert read() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked here")
def test_a_fork_waits_until_no_other_thread_holds_the_lock():
    with ThreadPoolExecutor(1) as other:
        other.submit(computing._lock.acquire).result()
        other.submit(lambda: (time.sleep(0.1), computing._lock.release()))
        child = os.fork()
        if not child:
            os._exit(not computing._lock.acquire(timeout=1.0))
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("partition", [0, 1, 2**32 - 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_a_generator_is_the_one_that_numpy_makes_of_the_words(seed, partition):
    for server_round, purpose in ((1, 1), (2, 1), (3000, 2), (1, 3)):
        words = (seed, server_round, partition & 0xFFFFFFFF, partition >> 32, purpose)
        generator = computing.random_generator(seed, server_round, partition, purpose)
        assert generator.bit_generator.state == np.random.default_rng(words).bit_generator.state


@pytest.mark.parametrize(("seed", "server_round"), [(-1, 1), (2**32, 1), (1, -1), (1, 2**32), (1, 10**30)])
def test_a_seed_or_round_that_is_no_word_is_refused(seed, server_round):
    refused(f"={seed}, server_round={server_round}; expected", computing.random_generator, seed, server_round, 0)


# --- the sum over replies ---------------------------------------------------------------------------------------------


def few(vector):
    indices = np.flatnonzero(vector > 0.5).astype(np.int32)
    return SparseVector(indices, vector[indices], vector.size)


#: Replies as they come: float64, float32, with strides, whole numbers, non-zeros.
FORMS = {"d": np.array, "f": np.float32, "t": lambda v: np.repeat(v, 2)[::2], "i": lambda v: np.arange(v.size)}
FORMS["s"] = few


@pytest.mark.parametrize("kinds", ["d", "ddd", "dddd", "ddddddddd", "fffffff", "ddfffds", "sddds", "tdtid", "sss"])
@pytest.mark.parametrize("size", [1, 7, 1_000, 65_536, 150_001])
def test_bits_are_those_of_one_after_the_other(kinds, size):
    rng = np.random.default_rng(size)
    given = [FORMS[kind](rng.standard_normal(size)) for kind in kinds]
    factors = np.random.default_rng(0).random(len(given)).tolist()
    expected = np.zeros(size)
    for factor, vector in zip(factors, given, strict=True):
        expected += factor * dense(vector)
    before = [np.array(dense(vector)) for vector in given]
    assert_array_equal(weighted_sum(zip(factors, given, strict=True), (size,)), expected)
    for vector, old in zip(given, before, strict=True):
        assert_array_equal(dense(vector), old)


def test_float32_replies_are_added_in_float64_in_the_memory_of_the_mean():
    size = 300_000
    rows = [np.full(size, value, dtype=np.float32) for value in (1e8, 1.0, -1e8, 0.1)]
    uplinks = [Uplink({"increment": row}, elapsed=1.0, steps=1, weight=0.25) for row in rows]
    Mean()(uplinks)
    tracemalloc.start()
    mean, _ = Mean()(uplinks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_array_equal(mean, np.full(size, 0.25 * (1.0 + float(np.float32(0.1)))))
    assert peak < 1.05 * mean.nbytes
