"""One client of a federation lies: in its messages, or below the seam at which they are read."""

import numpy as np
from faults import altered
from problems import CONSTANTS, FEATURES, app_of, fitting, kind_of, numpy_of, started

from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Steps

LIAR = 4
CLIENTS = 10


def regressions(number=CLIENTS, rows=30, seed=3):
    """Well-conditioned clients of equal size whose data follow different models."""
    objectives = []
    for m in range(number):
        rng = np.random.default_rng((seed, m))
        features, _ = np.linalg.qr(rng.standard_normal((rows, FEATURES)))
        truth = np.array([2.0, -2.0, 1.0, 0.0, 0.0, 0.0]) + 0.3 * rng.standard_normal(FEATURES)
        features *= np.sqrt(rows)
        objectives.append(LeastSquares(features, features @ truth, scale=0.5))
    return objectives


def in_messages(lie, liar=LIAR, kind="train"):
    """Return a mod with which a client lies: ``lie(round, vectors, claims)`` changes both in place, or raises."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        here = message.metadata.message_type == kind and int(context.node_config["partition-id"]) == liar
        number = message.metadata.group_id
        return altered(message, reply, lambda *own: lie(int(number), *own)) if here else reply

    return mod


def below_the_seam(grid, lie, liar=LIAR):
    """Let a client lie in what reaches the server where there are no messages."""
    honest = grid.uplinks

    def uplinks(number, tasks):
        return [
            (node, forged(number, up) if up is not None and grid.partition_ids[node.node_id] == liar else up)
            for node, up in honest(number, tasks)
        ]

    def forged(number, up):
        vectors = {name: np.array(value) for name, value in up.vectors.items()}
        claims = {"num-examples": up.examples, "local-steps": up.steps, "elapsed": up.elapsed, **up.metrics}
        lie(number, vectors, claims)
        own = {"examples": claims.pop("num-examples"), "steps": claims.pop("local-steps")}
        return up._replace(vectors=vectors, elapsed=claims.pop("elapsed"), metrics=claims, digest="", **own)

    grid.uplinks = uplinks


def make(name, **options):
    common = {"regularizer": L1(0.3), "client_lr": 0.1, "work": Steps(4, batch_size=None), "batch_size": None}
    options = {**CONSTANTS.get(name, {}), **common, **options, "fraction_evaluate": 0.0}
    kind = kind_of(name)
    if "regularizer" in kind.algorithm.refuses:
        options.pop("regularizer")
    return kind(**fitting(kind, options))


def run(strategy, objectives, rounds, *, mods=(), grid=InProcessGrid, prepare=None, callbacks=(), **options):
    """Run a strategy, and look after every round whether all is finite; return the result."""
    made = grid(app_of(objectives, mods), len(objectives))
    if prepare is not None:
        prepare(made)

    def check(number, arrays, metrics):
        values = [*strategy.state, *numpy_of(arrays).values()]
        assert all(np.isfinite(value).all() for value in values), f"round {number}"

    return started(strategy, made, rounds, callbacks=[check, *callbacks], **options)


def run_with(way, strategy, objectives, rounds, lie, liar=LIAR):
    """Run with a liar: in ``"messages"``, or in ``"uplinks"`` that reach the server without any."""
    if way == "messages":
        return run(strategy, objectives, rounds, mods=[in_messages(lie, liar)])
    return run(strategy, objectives, rounds, prepare=lambda grid: below_the_seam(grid, lie, liar))
