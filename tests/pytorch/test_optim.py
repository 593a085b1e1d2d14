"""The optimisers: the same increments as the NumPy local solvers, and PyTorch's own habits."""

import copy
import io

import numpy as np
import pytest
from together import together

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from torch import nn

from flwr_fco.client_apps import find_solver
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, UnsupportedPairError
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, PNorm, Product, SimplexEntropy
from flwr_fco.objectives import LeastSquares, MultinomialLogistic
from flwr_fco.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    L1Ball,
    NonNegative,
    Nuclear,
    PerParameter,
    Simplex,
    Zero,
)
from flwr_fco.torch import DualAveraging, DualExtrapolation, MirrorProx, ProximalSGD
from flwr_fco.torch.geometry import geometry
from flwr_fco.wire.protocol import Downlink, Plan
from flwr_fco.work import FirstOrder

ALL = [DualAveraging, ProximalSGD, DualExtrapolation, MirrorProx]


class Linear(nn.Module):
    """Predicts X w + b under the names of our objectives."""

    def __init__(self, *shape):
        super().__init__()
        self.coefficients = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.intercept = nn.Parameter(torch.zeros(shape[1:] or 1, dtype=torch.float64))

    def forward(self, features):
        return features @ self.coefficients + self.intercept


def _least_squares(rng):
    features, labels = rng.normal(size=(40, 6)), rng.normal(size=40)
    return LeastSquares(features, labels), Linear(6), (lambda out, y: ((out - y) ** 2).mean()), features, labels


def _logistic(rng):
    features, labels = rng.normal(size=(40, 6)), rng.integers(0, 3, 40)
    labels[:3] = [0, 1, 2]
    return MultinomialLogistic(features, labels), Linear(6, 3), nn.functional.cross_entropy, features, labels


PROBLEMS = {"least squares": _least_squares, "logistic": _logistic}


def _setting(problem, psi, solver, mirror_map=None, *, scope="each", options=(), seed=3):
    """Return objective, plan, batches and a function that runs an optimiser over those batches."""
    rng = np.random.default_rng(seed)
    objective, model, loss, features, labels = PROBLEMS[problem](rng)
    plan = Plan(
        solver=solver,
        layout=objective.layout,
        regularizer=psi,
        mirror_map=mirror_map or Euclidean(),
        scope=scope,
        work=FirstOrder(epochs=2, batch_size=7),
        options={"client-prox": True, "trajectory": False, "remember": False, **dict(options)},
    )

    def run(optimizer, downlink):
        for batch in objective.batches(np.random.default_rng(8), downlink.first_order):
            x, y = torch.tensor(features[batch]), torch.tensor(labels[batch])
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        return _flat(objective.layout, optimizer.increments())

    return objective, plan, model, run


def _flat(layout, tensors):
    return layout.flatten({name: tensor.numpy() for name, tensor in tensors.items()})


def _named(layout, vector):
    return layout.views(np.array(vector))


def _options(model, plan, lr):
    hit = plan.layout.regularized_names
    return {
        "params": model.named_parameters(),
        "lr": lr,
        "regularizer": plan.regularizer,
        "mirror_map": plan.mirror_map,
        "apply_to": hit,
        "scope": plan.scope,
    }


PAIRS = [
    ("least squares", Zero(), None),
    ("least squares", L1(0.5), None),
    ("least squares", ElasticNet(0.5, 0.4), None),
    ("least squares", L1Ball(0.4), None),
    ("least squares", L2(0.8), None),
    ("least squares", L1(0.5, weights=np.linspace(0.0, 2.0, 6)), None),
    ("logistic", L1(0.1), None),
    ("logistic", Nuclear(0.2), None),
    ("logistic", Simplex(), None),
    ("logistic", PerParameter({"coefficients": L1(0.05)}), None),
    ("least squares", L1(0.3), PNorm(4.0)),
    ("least squares", Zero(), PNorm(4.0, center=np.linspace(-1, 1, 7), radius=0.5)),
    ("least squares", ElasticNet(0.3), DiagonalMetric(np.linspace(0.5, 2.0, 7))),
    ("least squares", L1(0.3, weights=np.linspace(0.0, 2.0, 6)), SimplexEntropy(2.0)),
    ("least squares", L1(0.3), Product({"coefficients": PNorm(4.0), "*": Euclidean()})),
]


@together("foreach", [True, False])
@together(("problem", "psi", "mirror_map"), PAIRS)
def test_dual_averaging_takes_the_steps_of_the_numpy_solver(problem, psi, mirror_map, foreach):
    objective, plan, model, run = _setting(problem, psi, "dual_averaging", mirror_map)
    start = np.random.default_rng(1).normal(size=plan.layout.size)
    downlink = Downlink(plan, {"dual": start}, client_lr=0.05, elapsed=1.7)
    expected, _ = find_solver("dual_averaging")(downlink, objective, None, np.random.default_rng(8))
    optimizer = DualAveraging(**_options(model, plan, 0.05), foreach=foreach)
    optimizer.start_from(_named(plan.layout, start), elapsed=1.7)
    found = run(optimizer, downlink)
    np.testing.assert_allclose(found, expected.vectors["increment"], rtol=0, atol=1e-12)
    assert optimizer.elapsed_since_start == pytest.approx(expected.elapsed, rel=1e-12)
    assert optimizer.num_steps == expected.steps == 12
    # The parameters are the primal point of the end: what the server would retrieve.
    end = plan.h.retrieve(start + expected.vectors["increment"], 1.7 + expected.elapsed, plan.psi)
    np.testing.assert_allclose(_flat(plan.layout, _data(model)), end, atol=1e-12)


def _data(model):
    return {name: p.detach() for name, p in model.named_parameters()}


@together(
    ("problem", "psi", "mirror_map"),
    [pair for pair in PAIRS if not isinstance(pair[1], Simplex)],
)
def test_proximal_sgd_takes_the_steps_of_the_numpy_solver(problem, psi, mirror_map):
    objective, plan, model, run = _setting(problem, psi, "mirror_descent", mirror_map)
    start = plan.h.retrieve(np.random.default_rng(1).normal(size=plan.layout.size), 0.1, plan.psi)
    downlink = Downlink(plan, {"primal": start}, client_lr=0.05)
    expected, _ = find_solver("mirror_descent")(downlink, objective, None, np.random.default_rng(8))
    optimizer = ProximalSGD(**_options(model, plan, 0.05))
    optimizer.start_from(_named(plan.layout, start))
    np.testing.assert_allclose(run(optimizer, downlink), expected.vectors["increment"], rtol=0, atol=1e-12)
    assert optimizer.elapsed_since_start == pytest.approx(expected.elapsed, rel=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_shift_is_gradient_tracking(problem):
    objective, plan, model, run = _setting(problem, L1(0.1), "tracked_dual_averaging")
    rng = np.random.default_rng(1)
    start, tracker = rng.normal(size=plan.layout.size), rng.normal(size=plan.layout.size)
    downlink = Downlink(plan, {"dual": start, "tracker": tracker}, client_lr=0.05, elapsed=1.7)
    expected, _ = find_solver("tracked_dual_averaging")(downlink, objective, None, np.random.default_rng(8))
    optimizer = DualAveraging(**_options(model, plan, 0.05))
    optimizer.start_from(_named(plan.layout, start), elapsed=1.7)
    optimizer.set_shift(_named(plan.layout, tracker))
    np.testing.assert_allclose(run(optimizer, downlink), expected.vectors["increment"], rtol=0, atol=1e-12)


def test_a_shift_that_does_not_fit_leaves_the_one_before():
    parameters = [("one", nn.Parameter(torch.zeros(2))), ("two", nn.Parameter(torch.zeros(3)))]
    optimizer = ProximalSGD(parameters, lr=1.0)
    optimizer.set_shift({name: torch.ones_like(p) for name, p in parameters})
    with pytest.raises(ConfigurationError, match=r"'two' has shape \[4\], expected \[3\]"):
        optimizer.set_shift({"one": torch.zeros(2), "two": torch.zeros(4)})
    optimizer.step()
    assert all(torch.equal(p.detach(), -torch.ones_like(p)) for _, p in parameters)


def test_an_l1_ball_of_all_parameters_together():
    objective, plan, model, run = _setting("logistic", L1Ball(0.5), "dual_averaging", scope="joint")
    layout = Layout.from_arrays({k: v.numpy() for k, v in _data(model).items()}, apply_to="*")
    plan = Plan(**{**vars(plan), "layout": layout})
    start = np.random.default_rng(1).normal(size=layout.size)
    downlink = Downlink(plan, {"dual": start}, client_lr=0.05, elapsed=0.2)
    expected, _ = find_solver("dual_averaging")(downlink, objective, None, np.random.default_rng(8))
    optimizer = DualAveraging(**_options(model, plan, 0.05))
    optimizer.start_from(_named(layout, start), elapsed=0.2)
    np.testing.assert_allclose(run(optimizer, downlink), expected.vectors["increment"], rtol=0, atol=1e-12)
    assert sum(float(p.detach().abs().sum()) for p in model.parameters()) == pytest.approx(0.5, abs=1e-12)


MAPS = [
    (PNorm(3.5, radius=0.2), L1(0.3)),
    (PNorm(2.0), Zero()),
    (SimplexEntropy(2.0), NonNegative()),
    (DiagonalMetric(np.linspace(0.5, 2.0, 6)), Box(-0.3, 0.2)),
]


@together("size", [0.0, 1e-3, 1.0, 50.0])
@together(("mirror_map", "psi"), MAPS)
def test_mirror_maps_are_the_numpy_ones(mirror_map, psi, size):
    z = size * np.random.default_rng(0).normal(size=6)
    own = geometry(mirror_map, [psi], ["w"], [torch.zeros(2, 3, dtype=torch.float64)])
    (found,) = own.retrieve([torch.tensor(z.reshape(2, 3))], 0.7)
    expected = mirror_map.retrieve(z, 0.7, psi)
    np.testing.assert_allclose(found.numpy().reshape(-1), expected, rtol=1e-12, atol=1e-300)
    (dual,) = own.gradient([found])
    np.testing.assert_allclose(dual.numpy().reshape(-1), mirror_map.gradient(expected), rtol=1e-11, atol=1e-12)


# --- two gradients a step --------------------------------------------------------------------------------------------


def _game(dtype=torch.float64):
    """f(x, y) = x'Ay + b'x - c'y: x descends, y ascends; returns the modules and the operator on NumPy vectors."""
    rng = np.random.default_rng(4)
    a, b, c = rng.normal(size=(3, 2)), rng.normal(size=3), rng.normal(size=2)
    x, y = nn.Parameter(torch.zeros(3, dtype=dtype)), nn.Parameter(torch.zeros(2, dtype=dtype))
    ta, tb, tc = (torch.tensor(array, dtype=dtype) for array in (a, b, c))

    def loss():
        return x @ ta @ y + tb @ x - tc @ y

    def operator(w):
        return np.concatenate((a @ w[3:] + b, -(a.T @ w[:3] - c)))

    return x, y, loss, operator


PSI = ElasticNet(0.4, 0.6)
GAME_LAYOUT = Layout.from_arrays({"x": np.zeros(3), "y": np.zeros(2)}, apply_to="*")


def _extrapolation(operator, z, t, lr):
    psi = PSI.bind(GAME_LAYOUT)
    half = psi.prox(z - lr * operator(psi.prox(z, t)), t + lr)
    return z - lr * operator(half)


def _mirror_prox(operator, w, lr):
    psi = PSI.bind(GAME_LAYOUT)
    half = psi.prox(w - lr * operator(w), lr)
    return psi.prox(w - lr * operator(half), lr)


def _groups(x, y):
    return [{"params": [("x", x)]}, {"params": [("y", y)], "maximize": True}]


@pytest.mark.parametrize("way", ["closure", "two phases", "every second call"])
def test_dual_extrapolation_is_the_paper_s_step(way):
    x, y, loss, operator = _game()
    z, t, lr = np.random.default_rng(2).normal(size=5), 0.3, 0.2
    optimizer = DualExtrapolation(_groups(x, y), lr, PSI, apply_to="*")
    optimizer.start_from(_named(GAME_LAYOUT, z), elapsed=t)
    start = z
    for _ in range(6):
        z, t = _extrapolation(operator, z, t, lr), t + lr
        _take(optimizer, loss, way)
    np.testing.assert_allclose(_flat(GAME_LAYOUT, optimizer.increments()), z - start, rtol=0, atol=1e-12)
    assert optimizer.num_steps == 6
    assert optimizer.elapsed == pytest.approx(t, rel=1e-12)
    np.testing.assert_allclose(
        torch.cat([x.detach(), y.detach()]).numpy(), PSI.bind(GAME_LAYOUT).prox(z, t), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("way", ["closure", "two phases", "every second call"])
def test_mirror_prox_is_the_paper_s_step(way):
    x, y, loss, operator = _game()
    w, lr = np.random.default_rng(2).normal(size=5), 0.2
    optimizer = MirrorProx(_groups(x, y), lr, PSI, apply_to="*")
    optimizer.start_from(_named(GAME_LAYOUT, w))
    for _ in range(6):
        w = _mirror_prox(operator, w, lr)
        _take(optimizer, loss, way)
    np.testing.assert_allclose(torch.cat([x.detach(), y.detach()]).numpy(), w, rtol=0, atol=1e-12)


def _take(optimizer, loss, way):
    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    if way == "closure":
        assert isinstance(optimizer.step(closure), torch.Tensor)
        return
    closure()
    if way == "two phases":
        optimizer.half_step()
    else:
        optimizer.step()
    assert optimizer.is_half_way
    closure()
    optimizer.step()
    assert not optimizer.is_half_way


@pytest.mark.parametrize("kind", [DualExtrapolation, MirrorProx])
def test_half_steps_do_not_count_and_can_be_undone(kind):
    x, y, loss, _ = _game()
    optimizer = kind(_groups(x, y), 0.2, PSI, apply_to="*")
    optimizer.start_from({"x": torch.ones(3), "y": torch.ones(2)})
    before = x.detach().clone()
    loss().backward()
    optimizer.step()
    assert not torch.equal(x, before)
    with pytest.raises(ConfigurationError, match="complete the step"):
        optimizer.half_step()
    optimizer.undo_half_step()
    assert torch.equal(x, before)
    assert optimizer.elapsed_since_start == 0.0
    assert optimizer.num_steps == 0


# --- PyTorch's habits ------------------------------------------------------------------------------------------------


def _network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)


def _data_of(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(20, 4, generator=generator).to(dtype), torch.randint(0, 3, (20,), generator=generator)


def _train(model, optimizer, steps, scheduler=None):
    x, y = _data_of(next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


@pytest.mark.parametrize("kind", [DualAveraging, ProximalSGD])
def test_without_psi_both_are_sgd(kind):
    ours, theirs = _network(torch.float64), _network(torch.float64)
    _train(ours, kind(ours.parameters(), lr=0.1), 7)
    _train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), 7)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ALL)
def test_psi_acts_on_matrices_and_leaves_biases_and_batch_normalisation_alone(kind):
    model = _network()
    optimizer = kind(model.named_parameters(), lr=0.1, regularizer=L1(100.0))
    assert {name for name, psi in optimizer.regularizers.items() if psi is not None} == {"0.weight", "3.weight"}
    _train(model, optimizer, 4)
    for name, p in model.named_parameters():
        assert bool((p == 0).all()) == (p.ndim == 2) or name == "1.bias", name


def test_each_layer_can_have_a_psi_of_its_own_by_pattern():
    model = _network()
    psi = PerParameter({"0.*": L1(1.0), "3.weight": Nuclear(0.5)})
    optimizer = DualAveraging(model.named_parameters(), 0.1, psi, apply_to="*")
    assert optimizer.regularizers == {
        "0.weight": L1(1.0),
        "0.bias": L1(1.0),
        "1.weight": None,
        "1.bias": None,
        "3.weight": Nuclear(0.5),
        "3.bias": None,
    }


def test_a_group_with_a_psi_of_its_own_has_it_everywhere():
    model = _network()
    groups = [{"params": [model[0].weight, model[3].weight]}, {"params": [model[0].bias], "regularizer": L1(2.0)}]
    optimizer = DualAveraging(groups, 0.1, L1(1.0))
    assert list(optimizer.regularizers.values()) == [L1(1.0), L1(1.0), L1(2.0)]


@pytest.mark.parametrize("kind", ALL)
def test_elapsed_is_the_sum_of_what_a_schedule_gave(kind):
    model = _network()
    optimizer = kind(model.parameters(), lr=0.4, regularizer=L1(1e-3))
    steps = 6
    if kind in (DualExtrapolation, MirrorProx):
        x, y = _data_of()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

        def closure():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()

        for _ in range(steps):
            optimizer.step(closure)
            scheduler.step()
    else:
        _train(model, optimizer, steps, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    assert optimizer.elapsed == pytest.approx(2 * (0.4 + 0.2 + 0.1))


@together("kind", ALL)
@together("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded_it_goes_on_to_the_bit(kind, dtype):
    ours = _network(dtype)
    options = {"lr": 0.1, "regularizer": PerParameter({"0.*": L1(0.2, weights=np.ones((5, 4))), "*": L1(0.1)})}
    optimizer = kind(ours.named_parameters(), **options)
    _train(ours, optimizer, 3)  # odd: the extragradient methods are half way
    file = io.BytesIO()
    torch.save({"model": ours.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = _network(dtype)
    other.load_state_dict(saved["model"])
    resumed = kind(other.named_parameters(), lr=0.7, regularizer=L1(9.0))
    resumed.load_state_dict(saved["optimizer"])
    _train(ours, optimizer, 4)
    _train(other, resumed, 4)
    for own, theirs in zip(ours.parameters(), other.parameters(), strict=True):
        assert torch.equal(own, theirs)
    assert resumed.elapsed == optimizer.elapsed
    assert {tensor.dtype for tensor in resumed.increments().values()} == {torch.float64}


def test_a_copy_goes_on_too():
    model = _network()
    optimizer = DualAveraging(model.named_parameters(), 0.1, L1(0.1))
    _train(model, optimizer, 2)
    twin_model, twin = copy.deepcopy((model, optimizer))
    _train(model, optimizer, 2)
    _train(twin_model, twin, 2)
    assert torch.equal(model[0].weight, twin_model[0].weight)


def test_duals_in_float64_hold_where_float32_ones_do_not():
    # t * strength is 1e4 at the end, the weights are of size 1e-2: float32 has no digits for that.
    def train(**options):
        w = nn.Parameter(torch.zeros(50, 2))
        optimizer = DualAveraging([w], lr=1.0, regularizer=L1(1.0), **options)
        optimizer.start_from({"0": np.full((50, 2), 1e5 + 0.01)}, elapsed=1e5)
        optimizer.step()  # without a gradient: psi still acts
        return w.detach()

    exact = train()
    torch.testing.assert_close(exact, torch.zeros_like(exact))
    w = nn.Parameter(torch.zeros(3, 2))
    start = {"0": np.full((3, 2), 1e5 + 0.01)}
    errors = {}
    for dtype in (torch.float64, torch.float32):
        optimizer = DualAveraging([w], lr=1.0, regularizer=L1(1.0), dual_dtype=dtype)
        optimizer.start_from(start, elapsed=1e5)
        errors[dtype] = float((w.detach() - 0.01).abs().max())
    assert errors[torch.float64] < 1e-8
    assert errors[torch.float32] > 1e-4


def test_mixed_dtypes_in_one_optimiser():
    model = nn.Sequential(nn.Linear(4, 5).double(), nn.Linear(5, 3).bfloat16())
    optimizer = DualAveraging(model.named_parameters(), 0.1, L1(0.01))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    optimizer.step()
    for name, p in model.named_parameters():
        moved = before[name] - 0.1
        expected = L1(0.01).prox(moved.numpy(), 0.1) if p.ndim == 2 else moved.numpy()
        np.testing.assert_allclose(p.detach().double(), expected, atol=1e-2 if p.dtype == torch.bfloat16 else 1e-12)


def test_a_parameter_without_a_gradient_has_the_gradient_zero():
    w = nn.Parameter(torch.tensor([[1.0, 0.05]], dtype=torch.float64))
    optimizer = DualAveraging([w], lr=0.1, regularizer=L1(1.0))
    optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), [[0.9, 0.0]])
    assert float(optimizer.increments()["0"].abs().sum()) == 0.0


@pytest.mark.parametrize("psi", [Zero(), L1(0.4), ElasticNet(0.4, 0.3), Box(-0.1, 0.2), L1(0.4, bound=0.3), L2(3.0)])
def test_large_tensors_which_are_taken_one_by_one(psi):
    rng = np.random.default_rng(0)
    start, gradient = rng.normal(size=(600, 300)), rng.normal(size=(600, 300))
    w = nn.Parameter(torch.tensor(start))
    w.grad = torch.tensor(gradient)
    optimizer = DualAveraging([w], 0.1, psi)
    optimizer.step()
    optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), psi.prox(start - 0.2 * gradient, 0.2), rtol=0, atol=1e-13)


@pytest.mark.parametrize("foreach", [True, False])
def test_each_parameter_has_its_own_psi(foreach):
    """Different strengths, shrinkages and bounds in one call for all tensors; the last one has none."""
    psis = {
        "a": L1(0.5),
        "b": L1(0.1, bound=0.3),
        "c": ElasticNet(0.4, 0.3),
        "d": Box(-0.1, 0.2),
        "e": L1Ball(0.4),
        "f": Zero(),
    }
    rng = np.random.default_rng(0)
    start = {name: rng.normal(size=(3, 4)) for name in psis}
    weights = {name: nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    optimizer = DualAveraging(weights.items(), 0.1, PerParameter(psis), apply_to="*", foreach=foreach)
    for w in weights.values():
        w.grad = torch.ones_like(w)
    optimizer.step()
    optimizer.step()
    for name, psi in psis.items():
        expected = psi.prox((start[name] - 0.2).ravel(), 0.2).reshape(3, 4)
        np.testing.assert_allclose(weights[name].detach().numpy(), expected, rtol=0, atol=1e-14, err_msg=name)


def test_a_step_makes_no_numpy_array(monkeypatch):
    model = _network()
    optimizer = DualAveraging(model.named_parameters(), 0.1, PerParameter({"0.*": L1Ball(1.0), "*": L1(0.1)}))
    _train(model, optimizer, 1)

    def refuse(*args, **kwargs):
        raise AssertionError("a round trip through NumPy")

    monkeypatch.setattr(torch.Tensor, "numpy", refuse)
    monkeypatch.setattr(torch, "from_numpy", refuse)
    _train(model, optimizer, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0; expected a finite number"),
        ({"regularizer": "l1"}, "regularizer='l1'; expected one of flwr_fco.regularizers"),
        ({"mirror_map": "euclidean"}, "mirror_map='euclidean'"),
        ({"scope": "all"}, "scope='all'"),
        ({"dual_dtype": torch.float16}, "dual_dtype=torch.float16"),
        ({"apply_to": "*.weight"}, "named_parameters"),
        ({"regularizer": PerParameter({"*": L1(1.0)})}, "named_parameters"),
    ],
)
def test_arguments_that_cannot_work(change, message):
    with pytest.raises(ConfigurationError, match=message):
        DualAveraging(_network().parameters(), **{"lr": 0.1, **change})


def test_what_has_no_form_on_tensors_is_refused_at_the_first_step():
    class Louder(L1):
        kind = "test-louder-l1-of-an-optimiser"

    w = nn.Parameter(torch.zeros(3))
    with pytest.raises(ConfigurationError, match="Louder has no proximal map"):
        DualAveraging([w], 0.1, Louder(1.0)).step()
    with pytest.raises(UnsupportedPairError, match="PNorm has no closed form on tensors with L1Ball"):
        DualAveraging([w], 0.1, L1Ball(1.0), mirror_map=PNorm(3.0)).step()
    with pytest.raises(UnsupportedPairError, match="PNorm has a closed form on tensors only with"):
        DualAveraging([w], 0.1, ElasticNet(1.0), mirror_map=PNorm(3.0)).step()


def test_a_pattern_that_matches_nothing_and_a_missing_vector():
    model = _network()
    with pytest.raises(ValueError, match="matches none"):
        DualAveraging(model.named_parameters(), 0.1, L1(1.0), apply_to="fc*").step()
    with pytest.raises(ConfigurationError, match=r"no vector for the parameter '0.weight'"):
        DualAveraging(model.named_parameters(), 0.1).start_from({})
    with pytest.raises(ConfigurationError, match=r"has shape \[2\], expected \[3\]"):
        DualAveraging([nn.Parameter(torch.zeros(3))], 0.1).start_from({"0": np.zeros(2)})


def test_groups_of_different_rates_have_no_common_time():
    model = _network()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].parameters(), "lr": 0.2}]
    optimizer = DualAveraging(groups, 0.1, L1(1e-3))
    _train(model, optimizer, 1)
    with pytest.raises(ConfigurationError, match="the same learning rate"):
        _ = optimizer.elapsed


def _step(optimizer, model):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


@together(
    ("groups", "options", "words"),
    [
        (None, {"regularizer": PerParameter({"0.wieght": L1(1.0)})}, r"PerParameter.*\['0.wieght'\] match no array"),
        (None, {"regularizer": PerParameter({"*": L1(1.0), "0.weight": L2(1.0)})}, r"\['0.weight'\] match no array"),
        (None, {"regularizer": PerParameter({"*.bias": L1(1.0)})}, r"are not regularized: name them in apply_to="),
        (None, {"mirror_map": Product({"*": Euclidean(), "head": PNorm(3.0)})}, r"Product.*\['head'\] match no array"),
        (None, {"apply_to": "0.wieght"}, r"apply_to='0.wieght' matches none of the parameters"),
        ({"apply_to": "0.wieght"}, {"regularizer": L1(1.0)}, r"apply_to='0.wieght' matches none of the parameters"),
        ({"apply_to": "1.weight"}, {"regularizer": L1(1.0)}, r"apply_to='1.weight' matches none of the parameters"),
        ({"regularizer": PerParameter({"1.*": L1(1.0)})}, {}, r"PerParameter.*\['1.\*'\] match no array"),
        ({"mirror_map": Product({"*": Euclidean(), "1.*": PNorm(3.0)})}, {}, r"Product.*\['1.\*'\] match no array"),
    ],
)
@together("kind", ALL)
def test_a_pattern_that_matches_nothing_is_an_error_and_not_a_parameter_without_psi(kind, groups, options, words):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    named = list(model.named_parameters())
    params = named if groups is None else [{"params": named[:2], **groups}, {"params": named[2:]}]
    with pytest.raises(ConfigurationError, match=words):
        _step(kind(params, lr=0.1, **options), model)


@pytest.mark.parametrize("kind", ALL)
def test_patterns_of_all_groups_together_need_not_match_in_each_of_them(kind):
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    options = {
        "lr": 0.1,
        "regularizer": PerParameter({"0.*": L1(0.5), "1.*": L2(0.5)}),
        "mirror_map": Product({"0.*": Euclidean(), "1.*": Euclidean()}),
        "apply_to": ["0.weight", "1.weight"],
    }
    whole, parts = (list(model.named_parameters()) for model in models)
    for model, params in zip(models, (whole, [{"params": parts[:2]}, {"params": parts[2:]}]), strict=True):
        optimizer = kind(params, **options)
        for _ in range(4):
            optimizer.zero_grad()
            _step(optimizer, model)
    assert all(torch.equal(one, other) for one, other in zip(*(m.parameters() for m in models), strict=True))


@together("place", [0, 1])
@together("kind", ALL)
def test_an_empty_group_changes_nothing(kind, place):
    """As in PyTorch's own optimisers: a split of the parameters may leave a part of it without any."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    psi = PerParameter({"0.*": L1(0.5), "1.*": L2(0.5)})
    plain = kind(models[0].named_parameters(), lr=0.1, regularizer=psi)
    groups = [{"params": models[1].named_parameters()}]
    groups.insert(place, {"params": [], "lr": 3.0})
    odd = kind(groups, lr=0.1, regularizer=psi)
    for _ in range(2):
        for optimizer, model in ((plain, models[0]), (odd, models[1])):
            for _ in range(2):
                optimizer.zero_grad()
                _step(optimizer, model)
        saved = odd.state_dict()
        odd.load_state_dict(saved)
    assert all(torch.equal(one, other) for one, other in zip(*(m.parameters() for m in models), strict=True))
    assert (odd.elapsed, odd.num_steps) == (plain.elapsed, plain.num_steps)
    found, expected = odd.increments(), plain.increments()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    with pytest.raises(ConfigurationError, match="no group has any parameters"):
        kind([{"params": []}])


def test_a_rate_of_numpys_is_a_number():
    model = Linear(4)
    optimizer = DualAveraging(model.named_parameters(), lr=np.float32(0.5))
    model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert model.coefficients.tolist() == [-0.5] * 4
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
