"""Small saddle points, a client's answers on them, and runs of strategies."""

import numpy as np
from halves import find_solver
from problems import numpy_of
from problems import run as run_from

from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.mirror_maps import Euclidean, Product, SimplexEntropy
from flwr_fco.objectives import BilinearSaddle, LeastSquares
from flwr_fco.regularizers import L1, PerParameter, Zero
from flwr_fco.work import FirstOrder
from reproduction.data.saddle_objectives import UniversalAdversarialLogistic

RNG = np.random.default_rng(7)
BILINEAR = BilinearSaddle(RNG.uniform(-1, 1, (5, 8)), RNG.uniform(-1, 1, 5), noise=0.2)
GAME = BilinearSaddle(RNG.uniform(-1, 1, (4, 3)).T, noise=0.2)
ADVERSARIAL = UniversalAdversarialLogistic(RNG.normal(size=(17, 4)), RNG.integers(0, 3, 17), num_classes=3)
SPARSE = PerParameter({"x": L1(0.1, bound=0.5), "y": L1(0.05)})
ATTACK = PerParameter({"coefficients": L1(0.01), "perturbation": L1(0.02, bound=0.1)})
ENTROPY = Product({"*": SimplexEntropy()})
CASES = {
    "bilinear": (BILINEAR, SPARSE, Euclidean()),
    "game": (GAME, Zero(), ENTROPY),
    "adversarial": (ADVERSARIAL, ATTACK, Euclidean()),
    "a convex loss": (LeastSquares(RNG.normal(size=(9, 4)), RNG.normal(size=9)), L1(0.1), Euclidean()),
}


def answer(solver, objective, psi, h, vectors, *, client_lr=0.07):
    """Return a message of a round of four steps on batches of three, and the client's answer to it."""
    vectors = dict(vectors)
    options = vectors.pop("options", {})
    plan = Plan(solver, objective.layout, psi, h, work=FirstOrder(steps=4, batch_size=3), options=options)
    message = Downlink(plan, vectors, client_lr=client_lr, elapsed=0.3)
    for vector in message.vectors.values():
        vector.setflags(write=False)
    uplink, state = find_solver(solver)(message, objective, None, np.random.default_rng(0))
    assert state is None
    return message, uplink


def queries(objective, count):
    """Return the operators of a round: a fresh batch for each query."""
    batches = objective.batches(np.random.default_rng(0), FirstOrder(steps=count, batch_size=3))
    return [lambda w, b=b: objective.gradient(w, b) for b in batches]


def run(strategy, objectives, rounds, start=None):
    layout = objectives[0].layout
    start = layout.unflatten(np.zeros(layout.size)) if start is None else start
    return layout.flatten(numpy_of(run_from(strategy, objectives, rounds, start=start).arrays))


def one_client(**options):
    return {"min_train_nodes": 1, "min_available_nodes": 1, "server_lr": 1.0, **options}
