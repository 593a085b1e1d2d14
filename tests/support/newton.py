"""Problems for FedNewton, and runs of them."""

import numpy as np
from problems import app_of, numpy_of, simulated

from flwr_fco.algorithms.contract.replies import Replies
from flwr_fco.algorithms.newton import asking
from flwr_fco.algorithms.newton.method import NewtonState
from flwr_fco.messages.protocol import Uplink
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Poisson
from flwr_fco.strategies import FedNewton


def solved(objectives, psi, rounds=40, *, start=None, disclosure=None, **options):
    """Run FedNewton; by default from 0."""
    layout = objectives[0].layout
    only = {"min_train_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}
    given = {name: options.pop(name) for name in ("callbacks", "resume", "engine", "workers") if name in options}
    given["initial_arrays"] = layout.unflatten(np.zeros(layout.size)) if start is None else start
    weights = options.pop("site_weights", None)
    strategy = FedNewton(regularizer=psi, **only, **options)
    strategy.site_weights = weights
    app = app_of(objectives, disclosure=disclosure)
    return simulated(strategy, app, rounds, num_nodes=len(objectives), **given), strategy


def exchanged(objective, psi, w):
    """Return what one exchange with one client about a point tells, and the state after it."""
    layout = objective.layout
    first = asking.shapes_of_first(objective.layout, True)
    zeros = np.zeros(layout.size)
    rows = np.zeros(first.get("references", 0))
    state = NewtonState(w, w, zeros, zeros, zeros, np.full(4, -1.0), zeros, rows, units=zeros)
    uplink = Uplink(asking.answer(objective, w, True), None, 1, weight=1.0)
    asking.checked(layout, state, uplink, 0.0)
    return asking.opened(state, psi.bind(layout), Replies([uplink]))


def numbers(result, name):
    return [metrics[name] for metrics in result.train_metrics_clientapp.values() if name in metrics]


def point(result, objective):
    return objective.layout.flatten(numpy_of(result.arrays))


def sites(kind="logistic", sizes=(30, 41, 25), p=9, seed=0, change=lambda features, rng: features, **options):
    """Sites whose data differ in location, scale and truth; `change` makes other features of theirs."""
    objectives = []
    for m, n in enumerate(sizes):
        rng = np.random.default_rng((seed, m))
        features = change(rng.normal(0.3 * m, 1.0 + 0.5 * m, size=(n, p)), rng)
        scores = features @ (np.arange(p) % 3 - 1.0) + 0.5 * m - 1.0 + rng.normal(size=n)
        if kind == "squares":
            objectives.append(LeastSquares(features, scores, scale=0.5, **options))
        elif kind == "logistic":
            objectives.append(Logistic(features, scores > 0.0, **options))
        elif kind == "poisson":
            objectives.append(Poisson(features, rng.poisson(np.exp(np.clip(0.3 * scores, -2.0, 2.0))), **options))
        else:
            classes = np.digitize(scores, [-2.0, 2.0])
            objectives.append(MultinomialLogistic(features, classes, num_classes=3, **options))
    return objectives


def objective_value(objectives, psi, w):
    total = sum(objective.num_examples for objective in objectives)
    loss = sum(objective.num_examples * objective.value(w) for objective in objectives) / total
    return loss + psi.bind(objectives[0].layout).value(w)
