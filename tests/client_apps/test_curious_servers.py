"""A server that runs this package and wants single rows: what limits of a site's owner hold against, and how far."""

import json
import logging
from functools import partial

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from problems import arrays_of

import flwr_fco.tables  # noqa: F401 (it registers answers of its own)
from flwr_fco.client_apps import Disclosure, client_app
from flwr_fco.core.computing import random_generator
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import encode_question
from flwr_fco.objectives import LeastSquares, Logistic
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDAGT, FedDualAvg, FedMid, FeDualEx, Steps
from flwr_fco.work import FirstOrder

N, P = 60, 8
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, P)).round(3)
LABELS = (np.arange(N) < 28).astype(int)
ROWS = Disclosure(min_rows=20)
RATE = 0.1


class Curious:
    """A server's way to one site: it asks what it likes, as often as it likes, at points of its choice."""

    def __init__(self, disclosure=ROWS, objective=None, strategy=None):
        objective = objective or Logistic(X, LABELS)
        self.grid = InProcessGrid(client_app(lambda context: objective, disclosure=disclosure), 1)
        self.layout, self.context, self.received = objective.layout, self.grid.context(2), 0
        self.size = self.layout.size
        strategy = strategy or FedDualAvg(client_lr=RATE, work=Steps(1, batch_size=None))
        strategy.fraction_evaluate = 0.0
        strategy.min_train_nodes = 1
        strategy.min_available_nodes = 1
        start = self.layout.unflatten(np.zeros(self.size))
        with self.grid.identity(), quiet(50):
            strategy.prepare(arrays_of(start))
            self.message = strategy.configure_train(1, arrays_of(start), ConfigRecord(), self.grid)[0]

    def ask(self, content, kind, number):
        with self.grid.identity():
            message = Message(content, 2, kind, group_id=f"{number}")
            answer = self.grid.client_app(message, self.context).content
        for part in answer.values():
            if not isinstance(part, ConfigRecord):
                self.received += sum(value.numpy().size if hasattr(value, "numpy") else 1 for value in part.values())
        return answer

    def train(self, number=1, seed=None, **work):
        """Return the increment of a round, from the same point; `work` and the seed may be others than the plan's."""
        content = self.message.content.copy()
        about = dict(content["fco"])
        if work:
            about["work"] = json.dumps({**Steps(1).to_spec().header, **work})
        if seed is not None:
            about["plan"] = json.dumps({**json.loads(about["plan"]), "seed": seed})
        content["fco"] = ConfigRecord(about)
        return self.ask(content, "train", number)["arrays"]["increment"].numpy()

    def question(self, kind, w=None, **numbers):
        point = {"primal": np.zeros(self.size) if w is None else w}
        return self.ask(encode_question(Question(kind, self.layout, point, numbers)), "query.question", 1)


@pytest.fixture(autouse=True)
def quietly():
    """Hundreds of answers are no news here."""
    logger = logging.getLogger("flwr.disclosure")
    logger.disabled = True
    yield
    logger.disabled = False


def found(sums, rows=X):
    """Return how many rows are among sums over rows, each of which is a slope times the row and 1."""
    apart = [each[:-1] / each[-1] for each in sums if abs(each[-1]) > 1e-12]
    return sum(any(np.abs(row - one).max() < 1e-3 for one in apart) for row in rows)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 19])
@pytest.mark.parametrize("kind", [FedDualAvg, FedMid, FedDAGT, FeDualEx])
def test_smaller_batches_than_the_owner_allows_are_refused(kind, size):
    server = Curious(strategy=kind(client_lr=RATE, work=Steps(1, batch_size=None), seed=1))
    server.train(1)
    with pytest.raises(ConfigurationError, match=rf"batches of {size} rows; .* min_rows=20 allows"):
        server.train(2, batch_size=size)


@pytest.mark.parametrize(("one", "other", "limit"), [(N, N - 1, 20), (21, 20, 10)])
def test_sums_over_batches_of_two_sizes_are_no_row(one, other, limit):
    """The sum over 59 of 60 rows tells as much as the row which it lacks; of one order, 21 less 20 rows are one."""

    def differences(server):
        pairs = [[size * server.train(number, batch_size=size) for size in (one, other)] for number in range(300)]
        return [larger - smaller for larger, smaller in pairs]

    assert found(differences(Curious(Disclosure()))) > N - 10
    assert found(differences(Curious(Disclosure(min_rows=limit)))) == 0


@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 300), st.integers(1, 9), st.booleans())
def test_no_batch_and_no_rest_of_an_epoch_is_smaller(rows, least, size, count, epochs):
    objective = LeastSquares(np.zeros((rows, 1)), np.zeros(rows))
    limit = Disclosure(min_rows=least)
    context = InProcessGrid(client_app(lambda context: objective), 1).context(2)
    work = FirstOrder(epochs=count, batch_size=size) if epochs else Steps(count, batch_size=size)
    if rows < least:
        return
    try:
        allowed = limit.allowed(work, rows, context)
    except ConfigurationError:
        assert size < least
        return
    assert size >= min(least, rows)
    left = set(range(rows))
    for batch in objective.batches(np.random.default_rng(0), allowed):
        if not left:
            left = set(range(rows))
        left -= set(batch)
        assert len(batch) >= least
        assert not left or len(left) >= least


def test_where_classes_or_events_are_limited_batches_are_full():
    """A batch may hold one row of a class, and where the probabilities of all others are 0 it is that row alone."""
    labels = (np.arange(N) < 6).astype(int)
    only = np.r_[np.zeros(P), -40.0]

    for limit in ({"min_class_rows": 5}, {"min_events": 5}):
        server = Curious(Disclosure(min_rows=20, **limit), Logistic(X, labels))
        server.train()
        with pytest.raises(
            ConfigurationError, match=rf"full batches \(batch_size=None\) only, .* {next(iter(limit))}=5"
        ):
            server.train(batch_size=20)
    gradients = [Logistic(X, labels).gradient(only, RNG.permutation(N)[:20]) for _ in range(300)]
    assert found(gradients, X[labels == 1]) > 3


# --- who draws --------------------------------------------------------------------------------------------------------


def solved(server, seeds, numbers, size=20):
    """Return how many rows follow from increments over batches that the server believes to know."""
    work = Steps(1, batch_size=size)
    lines = []
    sums = []
    like = LeastSquares(np.zeros((N, 1)), np.zeros(N))
    for seed, number in zip(seeds, numbers, strict=True):
        batch = next(iter(like.batches(random_generator(seed, number, 0), work)))
        lines.append(np.bincount(batch, minlength=N) / size)
        sums.append(server.train(number, seed=seed, batch_size=size))
    return found(np.linalg.lstsq(np.array(lines), np.array(sums), rcond=None)[0])


@pytest.mark.parametrize("by", ["rounds", "seeds"])
def test_batches_of_a_known_seed_are_equations_and_of_the_sites_own_none(by):
    many = range(1, 101)
    same = [7] * 100
    seeds, numbers = (same, many) if by == "rounds" else (many, same)
    assert solved(Curious(Disclosure()), seeds, numbers) == N
    assert solved(Curious(), seeds, numbers) == 0


def test_the_seed_of_folds_is_a_sites_own_and_stays():
    one, other = (Curious().context for _ in range(2))
    assert ROWS.secret(one) == ROWS.secret(one) != ROWS.secret(other)


def test_the_longest_row_is_no_bound_that_leaves():
    assert Curious(Disclosure()).question("smoothness", **{"batch-size": 1.0})["metrics"]["l2"] > 0.0
    with pytest.raises(ConfigurationError, match="batches of 1 rows"):
        Curious().question("smoothness", **{"batch-size": 1.0})
    server = Curious()
    objective = Logistic(X, LABELS)
    bound = server.question("smoothness", **{"batch-size": 45.0})["metrics"]["l2"]
    assert bound == objective.batch_lipschitz(60)


# --- how much ---------------------------------------------------------------------------------------------------------


def evaluations(server, number):
    point = server.layout.unflatten(RNG.standard_normal(P + 1))
    server.ask(RecordDict({"arrays": arrays_of(point), "config": ConfigRecord()}), "evaluate", number + 1)


ASKS = {
    "quality": lambda server, number: server.question("quality", RNG.standard_normal(P + 1)),
    "calibration": lambda server, number: server.question("calibration", np.eye(P + 1)[0], slope=1e-9, intercept=0.0),
    "gradient": lambda server, number: server.question("first", RNG.standard_normal(P + 1)),
    "references": lambda server, number: server.question("duality", RNG.standard_normal(P + 1), references=1.0),
    "steps": lambda server, number: server.train(number + 1),
    "evaluations": evaluations,
}


@pytest.mark.parametrize("kind", ASKS)
def test_every_number_counts_until_the_owners_total_is_reached(kind):
    """By the length of the answers, whatever they are called. A refusal says the total, which the server knows."""
    server = Curious(Disclosure(max_numbers=200))
    with pytest.raises(ConfigurationError, match=r"numbers; this site has sent \d+ .* max_numbers=200 allows"):
        list(map(partial(ASKS[kind], server), range(300)))
    # The scales of the columns came first.
    assert 100 < server.received <= 200 - P
    assert server.context.state["fco-disclosed"]["numbers"] == server.received + P + 1
