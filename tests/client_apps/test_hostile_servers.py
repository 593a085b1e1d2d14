"""What a server says: absurd values are an error at once; and one that wants single rows is held off by limits."""

import json
import logging
import math
import re
import time
from contextlib import nullcontext
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from fuzz.budget import paths, replaced
from hypothesis import assume, given
from hypothesis import strategies as st
from problems import D, answered, app_of, arrays_of, clients, first_message, refused, zeros

import flwr_fco.tables  # noqa: F401 (it registers answers of its own)
from flwr_fco.client_apps import Disclosure, Limits, client_app
from flwr_fco.core.computing import random_generator
from flwr_fco.errors import ClientError, ConfigurationError, FlwrFcoError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import encode_question
from flwr_fco.mirror_maps import PNorm
from flwr_fco.objectives import LeastSquares, Logistic
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDAGT, FedDualAvg, FedMid, FedNewton, FeDualEx, Minimise, Steps, Strengths
from flwr_fco.work import FirstOrder

NAN = math.nan
INF = math.inf
#: Values that no field of a message has a use for.
ABSURD = {"NaN": NAN, "infinite": INF, "negative": -1.0, "text": "x", "a list": [0.1, 0.2]}


class Server:
    """A server's way to sites: the first message of a strategy in pieces, which may be changed, and its questions."""

    def __init__(self, strategy, objectives=None, **limits):
        objectives = objectives or clients()
        self.layout = objectives[0].layout
        self.grid = InProcessGrid(app_of(objectives, **limits), len(objectives))
        self.content = first_message(strategy, self.grid, zeros(self.layout)).content
        self.fco = dict(self.content["fco"])
        self.arrays = dict(self.content["arrays"])
        self.more = {}
        self.group = "1"
        self.header = json.loads(self.fco["plan"])

    def send(self, app=None):
        """Return the answer of the first site."""
        content = self.content.copy()
        if self.fco.get("plan") == self.content["fco"]["plan"]:
            self.fco["plan"] = json.dumps(self.header)
        content["fco"], content["arrays"] = ConfigRecord(self.fco), ArrayRecord(self.arrays)
        content.update({name: arrays_of(arrays) for name, arrays in self.more.items()})
        return answered(self.grid, content, number=self.group, app=app).content

    def question(self, kind, w=None, **numbers):
        point = {"primal": np.zeros(self.layout.size) if w is None else w}
        content = encode_question(Question(kind, self.layout, point, numbers))
        return answered(self.grid, content, "query.question").content


def put(place, name, value):
    """Set one entry of a part of the message; None takes it away."""

    def change(hostile):
        entries = getattr(hostile, place)
        entries[name] = value
        if value is None:
            del entries[name]

    return change


fco, vector = partial(put, "fco"), partial(put, "arrays")


def plan(path, value):
    """Set one entry of the plan's header; `path` is keys with dots."""
    return lambda hostile: vars(hostile).update(header=replaced(hostile.header, path.split("."), value))


def group(value):
    return lambda hostile: vars(hostile).update(group=value)


def weights(values):
    def change(hostile):
        hostile.header["regularizer"] = {**L1(0.1).to_spec().header, "weights": {"$array": "weights"}}
        hostile.more = {"fco-plan": {"regularizer/weights": values}}

    return change


def work(of=None, **values):
    return fco("work", json.dumps({**(of or Steps(3, batch_size=5)).to_spec().header, **values}))


def nested(depth):
    """A specification in a specification in a specification."""
    opening = '{"family":"regularizer","kind":"per_parameter","patterns":{"$mapping":[["*",'
    return opening * depth + '{"family":"regularizer","kind":"l1","strength":0.1}' + "]]}}" * depth


def layout(*entries):
    return plan("layout", {"$layout": [list(entry) for entry in entries]})


FED_DUAL_AVG = {
    # --- the numbers of the round
    **{f"{key} {prefix}": fco(key, n) for key in ("client-lr", "elapsed") for prefix, n in ABSURD.items()},
    **{f"a number {prefix}": fco("number:x", n) for prefix, n in ABSURD.items() if n != -1.0},
    "client-lr zero": fco("client-lr", 0.0),
    "elapsed absent": fco("elapsed", None),
    "a stamp that is a number": fco("stamp", 7),
    # --- the round's work
    **{f"{n:.0e} steps".replace("+", ""): work(steps=n) for n in (10**12, 0, -3, 1.5)},
    "1e400 steps": work(steps=10**400),
    "1e12 epochs": work(steps=None, epochs=10**12),
    "1e12 steps of the plan": plan("work.steps", 10**12),
    "steps and epochs": work(epochs=2),
    "no batch": work(batch_size=0),
    "work of an unhashable kind": work(kind=["steps"]),
    "work with more": work(gpu=True),
    **{f"work {text:.9}": fco("work", text) for text in ("{steps: 3", "[1, 2]", "17", "null", "[" * 100_000)},
    "work as a number": fco("work", 3),
    "a minimisation for a solver that takes steps": work(Minimise()),
    "1e12 iterations": work(Minimise(), max_iterations=10**12),
    # --- the plan as a whole
    "no plan": fco("plan", None),
    **{f"the plan {text:.12}": fco("plan", text) for text in ("{", "[]", "1", "{}", '{"layout":' * 50_000)},
    "a plan in 300 plans": fco("plan", nested(300)),
    "a plan of two megabytes": fco("plan", '{"layout": "' + "x" * 2_000_000 + '"}'),
    "a plan as a number": fco("plan", 7),
    **{f"an unknown solver of {n}": plan("solver", "quantum_descent" * n) for n in (1, 10_000)},
    "an option that is infinite": plan("options", {"$mapping": [["client_prox", INF]]}),
    # --- the layout
    "1e18 parameters": layout(("coefficients", [10**9, 10**9], "float64", True, True)),
    "another shape": layout(("coefficients", [9], "float64", True, True)),
    "other names": layout(("weights", [6], "float64", True, True), ("intercept", [1], "float64", True, False)),
    "another order": layout(("intercept", [1], "float64", True, False), ("coefficients", [6], "float64", True, True)),
    # --- psi and h
    "a regularizer with more": plan("regularizer.power", 2),
    "a mirror map as regularizer": plan("regularizer", {"family": "mirror map", "kind": "euclidean"}),
    "weights of another length": weights(np.ones(40)),
    "weights that are NaN": weights(np.full(6, NAN)),
    "weights that are negative": weights(-np.ones(6)),
    **{f"p {p}": plan("mirror_map", {**PNorm(3.0).to_spec().header, "p": p}) for p in (NAN, -1.0, 1.0, [2])},
    # --- the vectors
    "no dual": vector("dual", None),
    "dual NaN": vector("dual", Array(np.full(D, NAN))),
    "dual of another length": vector("dual", Array(np.zeros(D + 1))),
    "dual cut": vector("dual", Array("float64", (D,), "numpy.ndarray", Array(np.zeros(D)).data[:-5])),
    "a pass-through array that the plan has not": vector("pass:x", Array(np.zeros(2))),
    # --- the envelope
    **{f"round {value!r}": group(value) for value in ("", "first", "-1", "1.5")},
}


def second_round(**held):
    """A second round, in which the client has a memory that it was sent."""

    def change(hostile):
        hostile.arrays = {"dual": Array(np.zeros(D))}
        hostile.more["fco-restored"] = {"dual": np.ones(D), **held}

    return change


TRACKING = {
    "restored of another length": second_round(own=np.zeros(3)),
    "restored NaN": second_round(own=np.full(D, NAN)),
    "restored without own": second_round(),
    "control NaN": vector("control", Array(np.full(D, NAN))),
}
#: Of four points and three folds.
FOLDS = [*(("folds", number) for number in (-1.0, 0.5, 4.0, 1e9)), ("fold-0", -1.0), ("points", 1e15)]
MIRROR_DESCENT = {"no primal": vector("primal", None), "no learning rate": fco("client-lr", None)}
OPTIONS = {"regularizer": L1(0.3), "client_lr": 0.02}
ALONE = {"min_train_nodes": 1, "min_available_nodes": 1}
SHADOW = {"$mapping": [["output", "shadow"]]}
STRATEGIES = {
    "FedDualAvg": (lambda: FedDualAvg(**OPTIONS, work=Steps(3, batch_size=5)), FED_DUAL_AVG),
    "FedDAGT": (lambda: FedDAGT(**OPTIONS, work=Epochs(1, batch_size=5)), TRACKING),
    "FedMid": (lambda: FedMid(**OPTIONS, work=Epochs(1, batch_size=5)), MIRROR_DESCENT),
    "FedNewton": (
        lambda: FedNewton(regularizer=L1(1.0), strengths=Strengths(4, folds=3), **ALONE),
        {f"{value:g} {name}": fco(f"number:{name}", value) for name, value in FOLDS}
        | {"whole points": vector("nonzeros:primal", None)},
    ),
}


@pytest.mark.parametrize(("strategy", "case"), [(own, case) for own, (_, all_) in STRATEGIES.items() for case in all_])
def test_an_absurd_message_is_a_clear_error_at_once(strategy, case):
    make, cases = STRATEGIES[strategy]
    hostile, good = Server(make()), Server(make())
    good.grid = hostile.grid
    good.send()
    cases[case](hostile)
    # Of this process: a machine that is busy with something else does not count.
    began = time.process_time()
    with pytest.raises(FlwrFcoError) as caught:
        hostile.send()
    assert time.process_time() - began < 1.0
    assert len(str(caught.value)) < 2_000
    assert not isinstance(caught.value, ClientError)
    # The node lives: it answers the next message as if nothing had been.
    assert all(np.isfinite(array.numpy()).all() for array in good.send()["arrays"].values())


def test_every_entry_of_a_plan_is_checked():
    """Each in turn is what it cannot be, or is not there, as only options may."""
    hostile = Server(STRATEGIES["FedDualAvg"][0]())
    good = hostile.header
    ways = paths(hostile.header)
    assert len(ways) > 40
    for way in ways:
        for value in (NAN, INF, -1.0, [0.1, 0.2], {"$array": "nowhere"}, *([] if "options" in way else [...])):
            hostile.fco["plan"] = json.dumps(replaced(good, way, value))
            with pytest.raises(FlwrFcoError):
                pytest.fail(f"{way} {value}: {hostile.send()}")


LESS = [
    ("max_steps", 2, None, "3 steps in batches of 5: 3 local steps"),
    ("max_parameters", 6, None, "asks for a model of 7 parameters"),
    ("max_plan", 100, None, "a plan of .* characters"),
    ("max_parameters", 20, plan("options", SHADOW), "all 3 local points: 21 numbers in the reply"),
    ("max_iterations", 5, work(Minimise()), "a minimisation of 10000 iterations"),
]


@pytest.mark.parametrize(("limit", "value", "change", "asked"), LESS)
def test_an_owner_may_allow_less(limit, value, change, asked):
    hostile = Server(STRATEGIES["FedDualAvg"][0]())
    if change:
        change(hostile)
    app = client_app(lambda context: clients()[0], limits=Limits(**{limit: value}))
    refused(f"{asked}; this client allows {limit}={value}", hostile.send, app)


LIMITS = {"Limits.max_steps": Limits, "max_objectives": partial(client_app, lambda context: None)}
LIMITS |= {f"Disclosure.{limit}": Disclosure for limit in ("min_rows", "min_class_rows", "min_events")}


NO_LIMITS = [*product(LIMITS, [0, -1, NAN, "3", True, [1]]), *product([*LIMITS][1:], [2.5]), ("Limits.max_steps", None)]


@pytest.mark.parametrize(("limit", "value"), NO_LIMITS)
def test_a_limit_that_is_none_is_refused_with_its_value(limit, value):
    refused(re.escape(f"{limit}={value!r}") + ".*expected", LIMITS[limit], **{limit.rpartition(".")[2]: value})


WIDE = 2_500


def wide(limit, strengths=None):
    """Return a server whose Newton steps ask for all of many columns, and what the site has computed of them so far."""
    loss, asked = LeastSquares(np.zeros((4, WIDE)), np.zeros(4), intercept=False), []
    loss.newton_block = loss.hessian_block = lambda w, on: (
        asked.append(on.size) or np.zeros(on.size * (on.size + 1) // 2)
    )
    loss.row_gradients = lambda w: asked.append(w.size)
    strategy = FedNewton(regularizer=L1(0.1), strengths=strengths, **ALONE)
    return Server(strategy, [loss], limits=Limits(max_parameters=limit)), asked


def ask_for_blocks(server, sets, points=1, **numbers):
    """Ask for blocks at sets of columns: by name, how many of each point."""
    server.arrays = {}
    for name, columns in sets.items():
        on = (np.arange(columns) + WIDE * np.arange(points)[:, None]).ravel().astype(np.int32)
        server.arrays |= {f"nonzeros:{name}": Array(on), name: Array(np.zeros(on.size))}
    server.fco |= {f"number:{name}": value for name, value in {"points": float(points), **numbers}.items()}
    return server.send()


@pytest.mark.parametrize("limit", [10_000, 3_000_000])
@pytest.mark.parametrize("sets", [{"primal": WIDE}, {"primal": 1, "working-set": WIDE}], ids=["points", "sets"])
def test_a_hessian_block_is_refused_by_its_entries_before_it_is_computed(limit, sets):
    """Of 2,500 columns 3,126,250 numbers, in the place of the 2,500 of the model."""
    server, asked = wide(limit)
    said = rf"Hessian blocks: 3.12875e\+06 numbers; .* max_parameters={re.escape(f'{limit:g}')}"
    refused(said, ask_for_blocks, server, sets, validate=1.0)
    assert asked == []
    ask_for_blocks(server, {name: min(columns, 100) for name, columns in sets.items()})
    refused("Hessian blocks", ask_for_blocks, server, sets)
    assert asked == [100]


def test_blocks_of_many_points_and_folds_are_refused_by_their_sum():
    server, asked = wide(1_000_000, strengths=Strengths(3, folds=2))
    counts = {"fold-0": 300.0, "fold-1": 0.0, "fold-2": 0.0, "validate": 0.0}
    refused(r"Hessian blocks: 2.265e\+06 numbers", ask_for_blocks, server, {"primal": 2, "wanted": 100}, 300, **counts)
    said = r"of points and folds: 1\.00003e\+07 iterations"
    refused(said, ask_for_blocks, server, {"primal": 2}, 300, **counts, folds=1e7)
    assert asked == []


@pytest.mark.parametrize("kind", ["estimates", "derivatives"])
def test_questions_that_take_second_derivatives_have_the_same_limit(kind):
    server, asked = wide(1_000_000)
    said = r"second derivatives: \S+ numbers; .* max_parameters=1e\+06"
    refused(said, partial(server.question, own=0.0, least=0.0, pooled=0.0, clustered=1.0), kind)
    assert asked == []


# --- a server that runs this package and wants single rows ------------------------------------------------------------

N, P = 60, 8
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, P)).round(3)
LABELS = (np.arange(N) < 28).astype(int)
ROWS = Disclosure(min_rows=20)
RATE = 0.1


class Curious(Server):
    """A server's way to one site: it asks what it likes, as often as it likes, at points of its choice."""

    def __init__(self, disclosure=ROWS, objective=None, strategy=FedDualAvg):
        own = strategy(client_lr=RATE, work=Steps(1, batch_size=None), **ALONE)
        super().__init__(own, [objective or Logistic(X, LABELS)], disclosure=disclosure)
        self.context = self.grid.context(2)
        self.received = 0

    def counted(self, answer):
        for part in answer.values():
            if not isinstance(part, ConfigRecord):
                self.received += sum(value.numpy().size if hasattr(value, "numpy") else 1 for value in part.values())
        return answer

    def train(self, number=1, seed=None, **of_work):
        """Return the increment of a round, from the same point; the work and the seed may be others than the plan's."""
        self.group = f"{number}"
        if of_work:
            work(Steps(1), **of_work)(self)
        if seed is not None:
            self.fco["plan"] = json.dumps({**self.header, "seed": seed})
        return self.counted(self.send())["arrays"]["increment"].numpy()

    def question(self, kind, w=None, **numbers):
        return self.counted(super().question(kind, w, **numbers))


@pytest.fixture(autouse=True)
def quietly(monkeypatch):
    """Hundreds of answers are no news here."""
    monkeypatch.setattr(logging.getLogger("flwr.disclosure"), "disabled", True)


def found(sums, rows=X):
    """Return how many rows are among sums over rows, each of which is a slope times the row and 1."""
    apart = [each[:-1] / each[-1] for each in sums if abs(each[-1]) > 1e-12]
    return sum(any(np.abs(row - one).max() < 1e-3 for one in apart) for row in rows)


def like(rows):
    """Return a loss that draws batches as that of any site with so many rows."""
    return LeastSquares(np.zeros((rows, 1)), np.zeros(rows))


# --- folds of a path --------------------------------------------------------------------------------------------------


def dealing(**limits):
    return Server(STRATEGIES["FedNewton"][0](), [Logistic(X, LABELS)], **limits)


def ask_for_folds(server, **numbers):
    server.fco |= {f"number:{name}": value for name, value in numbers.items()}
    return server.send()["arrays"]


def test_where_rows_are_limited_a_run_deals_them_into_folds_once():
    """Each row is alone in some intersection of folds of several sizes; the seed of the server deals none."""
    two = {"folds": 2.0, "fold-0": 2.0}
    assert ask_for_folds(dealing(), **two)
    servers = [dealing(), dealing(disclosure=ROWS), dealing(disclosure=ROWS)]
    sums = [[ask_for_folds(server)["gradient"].numpy() for _ in range(2)] for server in servers]
    for one, other in sums:
        np.testing.assert_array_equal(one, other)
    assert not any(np.allclose(one[0], other[0]) for one, other in combinations(sums, 2))
    refused("asks for other folds than before in this run", ask_for_folds, servers[1], **two)
    # What is held out now would have been trained on.
    refused("lost its folds, as when", ask_for_folds, dealing(disclosure=ROWS), first=0.0)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 19])
@pytest.mark.parametrize("kind", [FedDualAvg, FedMid, FedDAGT, FeDualEx])
def test_smaller_batches_than_the_owner_allows_are_refused(kind, size):
    server = Curious(strategy=kind)
    server.train(1)
    refused(rf"batches of {size} rows; .* min_rows=20 allows", server.train, 2, batch_size=size)


@pytest.mark.parametrize(("one", "other", "limit"), [(N, N - 1, 20), (21, 20, 10)])
def test_sums_over_batches_of_two_sizes_are_no_row(one, other, limit):
    """The sum over 59 of 60 rows tells as much as the row which it lacks; of one order, 21 less 20 rows are one."""

    def differences(server):
        pairs = [[size * server.train(number, batch_size=size) for size in (one, other)] for number in range(160)]
        return [larger - smaller for larger, smaller in pairs]

    assert found(differences(Curious(Disclosure()))) > N - 10
    assert found(differences(Curious(Disclosure(min_rows=limit)))) == 0


@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 300), st.integers(1, 9), st.booleans())
def test_no_batch_and_no_rest_of_an_epoch_is_smaller(rows, least, size, count, epochs):
    assume(rows >= least)
    context = InProcessGrid(client_app(lambda context: None), 1).context(2)
    work = FirstOrder(epochs=count, batch_size=size) if epochs else Steps(count, batch_size=size)
    with pytest.raises(ConfigurationError) if size < least else nullcontext():
        allowed = Disclosure(min_rows=least).allowed(work, rows, context)
    left = set()
    for batch in like(rows).batches(np.random.default_rng(0), allowed) if size >= least else ():
        left = (left or set(range(rows))) - set(batch)
        assert len(batch) >= least
        assert not left or len(left) >= least


def test_where_classes_or_events_are_limited_batches_are_full():
    """A batch may hold one row of a class, and where the probabilities of all others are 0 it is that row alone."""
    labels = (np.arange(N) < 6).astype(int)
    only = np.r_[np.zeros(P), -40.0]
    for limit in ("min_class_rows", "min_events"):
        server = Curious(Disclosure(min_rows=20, **{limit: 5}), Logistic(X, labels))
        server.train()
        refused(rf"full batches \(batch_size=None\) only, .* {limit}=5", server.train, batch_size=20)
    assert found([Logistic(X, labels).gradient(only, RNG.permutation(N)[:20]) for _ in range(300)], X[labels == 1]) > 3


# --- who draws --------------------------------------------------------------------------------------------------------


def solved(server, seeds, numbers, size=20):
    """Return how many rows follow from increments over batches that the server believes to know."""
    work = Steps(1, batch_size=size)
    lines, sums = [], []
    for seed, number in zip(seeds, numbers, strict=True):
        batch = next(iter(like(N).batches(random_generator(seed, number, 0), work)))
        lines.append(np.bincount(batch, minlength=N) / size)
        sums.append(server.train(number, seed=seed, batch_size=size))
    return found(np.linalg.lstsq(np.array(lines), np.array(sums), rcond=None)[0])


@pytest.mark.parametrize("by", ["rounds", "seeds"])
def test_batches_of_a_known_seed_are_equations_and_of_the_sites_own_none(by):
    pair = ([7] * 100, range(1, 101))[:: 1 if by == "rounds" else -1]
    assert (solved(Curious(Disclosure()), *pair), solved(Curious(), *pair)) == (N, 0)


def test_the_longest_row_is_no_bound_that_leaves():
    assert Curious(Disclosure()).question("smoothness", **{"batch-size": 1.0})["metrics"]["l2"] > 0.0
    refused("batches of 1 rows", Curious().question, "smoothness", **{"batch-size": 1.0})
    for size, times in ((45.0, 1.0), (30.0, 2.0), (0.0, 1.0)):
        bound = Curious().question("smoothness", **{"batch-size": size})["metrics"]["l2"]
        assert bound == times * Logistic(X, LABELS).batch_lipschitz(60), size


def test_a_centre_changes_no_first_answer_and_moves_no_row_into_another_bin():
    server, said = Curious(), []
    for (kind, name), centre in product([("bins", "rows"), ("first", "gradient")], (1e-300, 0.3)):
        server.question("centred", np.full(P + 1, centre))
        answer = server.question(kind, np.eye(P + 1)[0], merged=1.0, **{"edge-0": 0.0})
        said.append(answer["arrays"][name].numpy().tolist())
    assert (min(said[0]) > 0.0, said[::2]) == (True, said[1::2])


def test_no_share_of_a_mixture_says_where_the_worst_row_is():
    for about in ({"references": 0.0, "share-0": share} for share in (1.1, 1.0 + 1e-9, -0.1)):
        refused("expected shares >= 0", partial(Curious().question, "duality", **about), kind=FlwrFcoError)


# --- how much ---------------------------------------------------------------------------------------------------------


def evaluations(server, number):
    point = arrays_of(server.layout.unflatten(RNG.standard_normal(P + 1)))
    content = RecordDict({"arrays": point, "config": ConfigRecord()})
    server.counted(answered(server.grid, content, "evaluate", number + 1).content)


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
    said = r"numbers; this site has sent \d+ .* max_numbers=200 allows"
    refused(said, lambda: list(map(partial(ASKS[kind], server), range(300))))
    # The scales of the columns came first, and the number of rows; of columns about 0 no size of their entries.
    assert 100 < server.received <= 200 - P
    assert server.context.state["fco-disclosed"]["numbers"] == server.received + P + 1
