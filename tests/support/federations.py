"""Federations of tables, the estimates of their pooled rows by the textbook, and fits over a grid of sites."""

from contextlib import contextmanager
from functools import partial

import numpy as np
from faults import FaultyGrid, altered

from flwr_fco.core.computing import quiet
from flwr_fco.simulation import InProcessGrid
from flwr_fco.tables import FederatedLasso, FederatedLogisticRegression


def federation(kind, sites=4, rows=60, seed=0):
    """Features of unequal location, and targets or classes."""
    rng = np.random.default_rng(seed)
    parts = [rng.normal(0.3 * m, 1.0, size=(rows + 10 * m, 3)) * [1.0, 10.0, 0.1] for m in range(sites)]
    scores = [X @ [0.5, 0.05, 0.0] for X in parts]
    if kind == "lasso":
        return parts, [score + rng.normal(size=score.size) for score in scores]
    return parts, [(rng.random(score.size) < 1 / (1 + np.exp(-score))).astype(float) for score in scores]


def model_of(kind, sites=4):
    if kind == "lasso":
        return FederatedLasso(0.1, num_clients=sites)
    return FederatedLogisticRegression(0.05, l1_ratio=1.0, num_clients=sites)


def by_hand(kind, A, y, weights=None, clusters=None):
    """Return the unpenalised estimates and standard errors of rows in one place; or robust ones."""
    w = np.zeros(A.shape[1])
    v = np.ones(len(y)) if weights is None else weights
    n = len(y)
    for _ in range(1 if kind == "lasso" else 30):
        probability = A @ w if kind == "lasso" else 1 / (1 + np.exp(-A @ w))
        curvatures = v * (np.ones(n) if kind == "lasso" else probability * (1 - probability))
        inverse = np.linalg.inv((A.T * curvatures) @ A)
        w = w + inverse @ A.T @ (v * (y - probability))
    left = y - (A @ w if kind == "lasso" else probability)
    if weights is None and clusters is None:
        return w, np.sqrt(np.diag(inverse) * (left @ left / (n - w.size) if kind == "lasso" else 1.0))
    codes = np.arange(n) if clusters is None else clusters
    sums = np.array([(A * (v * left)[:, None])[codes == code].sum(axis=0) for code in np.unique(codes)])
    factor = len(sums) / (len(sums) - 1) * ((n - 1) / (n - w.size) if kind == "lasso" else 1.0)
    return w, np.sqrt(np.diag(inverse @ sums.T @ sums @ inverse) * factor)


def pooled(kind, parts, targets, *, own=True, weights=None, clusters=None):
    """Return the estimates and errors of the three features, beside dummies of the sites or one intercept."""
    sites = np.repeat(np.arange(len(parts)), [len(y) for y in targets])
    beside = np.eye(len(parts))[sites] if own else np.ones((sites.size, 1))
    clusters = sites if isinstance(clusters, str) else clusters
    both = by_hand(kind, np.c_[np.vstack(parts), beside], np.concatenate(targets), weights, clusters)
    return [each[: parts[0].shape[1]] for each in both]


@contextmanager
def grid_of(model, sites, *, disclosure=None, app=None, grid=InProcessGrid, raise_errors=False):
    """Yield a grid of which each site loads its own of `sites`, or what a function of its partition makes of them."""
    loaded = (lambda m: sites[m]) if isinstance(sites, list) else sites
    load = model.client_app(lambda c: loaded(c.node_config["partition-id"]), disclosure=disclosure, **(app or {}))
    made = grid(load, len(sites) if isinstance(sites, list) else 3, raise_errors=raise_errors)
    with made.identity(), quiet(50):
        yield made


def fit_over_a_grid(model, sites, *, features=None, disclosure=None, app=None, grid=InProcessGrid, **more):
    """Fit over a grid of which each site loads its own of `sites`; return the model and the grid."""
    errors = {"raise_errors": more.pop("raise_errors", False)}
    with grid_of(model, sites, disclosure=disclosure, app=app, grid=grid, **errors) as made:
        return model.fit(made, features=features, **more), made


def altering(site, about, change):
    """Return a kind of grid: a site's answers that have a vector or number `about` are changed in place."""

    def changed(vectors, numbers):
        if about in {**vectors, **numbers}:
            change(vectors, numbers)

    def fault(delivery):
        return [altered(delivery.message, delivery.deliver(), changed)]

    return partial(FaultyGrid, faults={fault: 1.0}, partitions=[site], message_types=("query.question",))


def counting(asked, said=None):
    """Return a kind of grid that adds the type of each message to a list, and to another all numbers of the replies."""

    class Counting(InProcessGrid):
        direct = None  # messages

        def reply(self, message):
            asked.append((message.metadata.dst_node_id, message.metadata.message_type))
            reply = super().reply(message)
            if said is not None:
                said.extend(float(own) for each in reply.content.metric_records.values() for own in each.values())
                for record in reply.content.array_records.values():
                    said.extend(number for array in record.values() for number in np.ravel(array.numpy()).tolist())
            return reply

    return Counting
