"""The contract of a regularizer, for every class that `flwr_fco.regularizers.__all__` exports."""

import inspect
import pickle
from dataclasses import replace

import numpy as np
import pytest
from examples_of_psi import EXAMPLES
from problems import refused

import flwr_fco.regularizers as package
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import Adapter, PerParameter, Regularizer, Zero
from flwr_fco.testing import check_regularizer

EACH = pytest.mark.parametrize(("regularizer", "shape"), EXAMPLES)
CONVEX = [own for own in EXAMPLES if own[0].convex and not isinstance(own[0], Adapter)]
SEPARABLE = [own for own in EXAMPLES if own[0].terms() is not None]
MEMBERS = [value for name in package.__all__ if inspect.isclass(value := getattr(package, name))]


def test_every_exported_class_has_an_example():
    exported = {cls for cls in MEMBERS if issubclass(cls, Regularizer) and not inspect.isabstract(cls)}
    # One cannot act on an array without its name; it has tests of its own.
    assert exported <= {type(regularizer) for regularizer, _ in EXAMPLES} | {PerParameter}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
@EACH
def test_contract(regularizer, shape, seed):
    check_regularizer(regularizer, shape=shape, seed=seed)


def adversarial(n):
    """Points at which implementations break: zeros, ties, huge, tiny, denormal, mixed magnitudes."""
    ramp = np.arange(1, n + 1, dtype=float)
    yield from (np.zeros(n), -np.zeros(n), np.full(n, 0.25), np.full(n, -1e200))
    yield from (scale * ramp for scale in (1e150, 1e-200, 5e-324))
    yield np.resize([1.0, -1.0, 1.0, 0.5], n)
    yield np.resize([1e150, 1e-150, 0.0, -1e150, 5e-324, 1.0], n)


@EACH
@pytest.mark.parametrize("step", [1e-6, 1.0, 1e6])
@pytest.mark.filterwarnings("error")
def test_adversarial_inputs_stay_finite_and_feasible(regularizer, shape, step):
    for v in adversarial(int(np.prod(shape))):
        v = v.reshape(shape)
        p = regularizer.prox(v, step)
        assert np.isfinite(p).all(), v
        assert not np.signbit(p[p == 0]).any(), v
        assert not np.isnan(regularizer.value(p)), v
        assert not regularizer.constraint or regularizer.value(p) == 0.0, v
        assert np.array_equal(regularizer.prox(v.copy(), step, out := v.copy()), out)
        in_place = v.copy()
        assert np.array_equal(regularizer.prox(in_place, step, in_place), p), v


@EACH
def test_strided_and_read_only_arrays(regularizer, shape):
    v = np.random.default_rng(4).normal(size=shape)
    expected = regularizer.prox(v, 0.5)
    strided = np.asfortranarray(v) if v.ndim > 1 else np.repeat(v, 2)[::2]
    assert np.array_equal(regularizer.prox(strided, 0.5), expected)
    out = np.empty((*shape, 2))[..., 0]
    assert regularizer.prox(v, 0.5, out) is out
    assert np.array_equal(out, expected)
    v.setflags(write=False)
    assert np.array_equal(regularizer.prox(v, 0.5), expected)


@pytest.mark.parametrize(("regularizer", "shape"), CONVEX)
def test_subgradient_inequality(regularizer, shape):
    """psi(x) >= psi(w) + <s, x - w> for the subgradient s at w."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        w = regularizer.prox(rng.normal(size=shape), 0.3)
        s = regularizer.subgradient(w)
        assert s.shape == w.shape
        assert regularizer.subgradient(w.astype(np.float32)).dtype == np.float32
        for x in rng.normal(size=(5, *shape)):
            assert regularizer.value(x) >= regularizer.value(w) + np.sum(s * (x - w)) - 1e-12


@pytest.mark.parametrize(("regularizer", "shape"), CONVEX)
def test_a_conjugate_is_fenchels(regularizer, shape):
    """With p = prox(u) the vector (u - p)/s is a subgradient at p: psi(p) + psi*(v) = <p, v>; elsewhere at least."""
    rng = np.random.default_rng(0)
    for step in (0.3, 2.0):
        u = rng.normal(size=shape)
        p = regularizer.prox(u, step)
        # Of an unbounded norm v lies on the boundary of where psi* is finite: rounding may push it outside.
        v = (1.0 - 1e-12) * (u - p) / step
        conjugate = regularizer.conjugate(v)
        assert regularizer.value(p) + conjugate == pytest.approx(float(np.vdot(p, v)), abs=1e-10)
        for _ in range(10):
            other = regularizer.prox(rng.normal(size=shape), 0.5)
            assert regularizer.value(other) + conjugate >= float(np.vdot(other, v)) - 1e-12
        scaling = regularizer.largest_scaling(u)
        if 0.0 < scaling < np.inf:
            assert regularizer.conjugate((1.0 - 1e-6) * scaling * u) < np.inf
            assert regularizer.conjugate((1.0 + 1e-6) * scaling * u) == np.inf


@pytest.mark.parametrize(("regularizer", "shape"), SEPARABLE)
def test_terms_are_the_prox(regularizer, shape):
    terms = regularizer.terms()
    v = np.random.default_rng(6).normal(size=shape)
    step = 0.7
    soft = np.sign(v) * np.maximum(np.abs(v) - step * np.asarray(terms.threshold), 0)
    expected = np.clip(soft / (1 + step * np.asarray(terms.shrinkage)), terms.lower, terms.upper)
    np.testing.assert_allclose(regularizer.prox(v, step), expected, rtol=1e-14, atol=1e-16)


@EACH
def test_strength_max_is_the_threshold_of_zero(regularizer, shape):
    """At strength_max prox(-gradient) is 0, just below it is not."""
    gradient = np.random.default_rng(7).normal(size=shape)
    weights = getattr(regularizer, "weights", None)
    if weights is not None:
        weights = weights[regularizer.groups] if hasattr(regularizer, "groups") else weights
        gradient = np.where(np.broadcast_to(weights, shape) == 0, 0.0, gradient)
    try:
        strength = regularizer.strength_max(gradient)
    except ConfigurationError as error:
        assert type(regularizer).__name__ in str(error)  # noqa: PT017
        return
    assert not replace(regularizer, strength=strength * (1 + 1e-12)).prox(-gradient, 1.0).any()
    assert replace(regularizer, strength=strength * (1 - 1e-6)).prox(-gradient, 1.0).any()


@EACH
def test_arguments_are_looked_at_and_a_copy_is_equal(regularizer, shape):
    refused("step", regularizer.prox, np.zeros(shape), True)
    refused("out", regularizer.prox, np.zeros(shape), 1.0, np.zeros(shape, dtype=np.float32))
    twin = pickle.loads(pickle.dumps(regularizer))
    assert twin == regularizer
    assert hash(twin) == hash(regularizer)
    assert twin != Zero() or isinstance(regularizer, Zero)


@EACH
def test_bound_to_a_model(regularizer, shape):
    """On the flat vector of a model psi acts on its array and leaves the others alone."""
    layout = Layout.from_arrays({"before": np.zeros(2), "w": np.zeros(shape), "after": np.zeros(3)}, apply_to="w")
    bound = regularizer.bind(layout)
    v = np.random.default_rng(8).normal(size=layout.size)
    p = bound.prox(v, 0.5)
    own = regularizer.prox(v[2:-3].reshape(shape), 0.5)
    assert np.array_equal(p, np.r_[v[:2], own.ravel(), v[-3:]])
    assert bound.value(p) == regularizer.value(own)
    assert np.array_equal(bound.prox(v, 0.5, v), p)
