"""What a server says: every field of a training message with absurd values is an error that says so, at once."""

import copy
import json
import math
import re
import time

import numpy as np
import pytest
from fitting import fitting
from flwr.app import Array, ArrayRecord, ConfigRecord
from problems import CONSTANTS, FEATURES, SADDLE, app_of, clients, kind_of, start_arrays
from quadratics import quadratics
from representatives import by_class
from together import together

from flwr_fco.algorithms.contract import halves
from flwr_fco.client_apps import client_app
from flwr_fco.client_apps import quotas as limits_module
from flwr_fco.client_apps.quotas import Limits
from flwr_fco.core import computing as clock_module
from flwr_fco.core.spec import Spec
from flwr_fco.engines.minimisers import ENGINES
from flwr_fco.errors import ClientError, ConfigurationError, FlwrFcoError
from flwr_fco.objectives import LeastSquares, Logistic
from flwr_fco.regularizers import L1, L2Squared
from flwr_fco.server.method import algorithm_class
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import STRATEGIES as ALL_STRATEGIES
from flwr_fco.strategies import (
    Epochs,
    FedDAGT,
    FedDR,
    FedDualAvg,
    FedMid,
    FedNewton,
    Minimise,
    Steps,
    method_of,
    run_of,
)
from flwr_fco.wire import flower as _flower
from flwr_fco.work import FirstOrder
from reproduction.data.saddle_objectives import QuadraticSaddle

D = FEATURES + 1
NAN, INF = math.nan, math.inf
#: Values that no field of a message has a use for.
ABSURD = {"NaN": NAN, "infinite": INF, "minus infinity": -INF, "negative": -1.0, "huge": 1e300, "text": "x"}


class Hostile:
    """A message of one of our strategies in pieces: the plan's header and arrays, the numbers, the vectors."""

    def __init__(self, strategy):
        strategy.fraction_evaluate = 0.0
        self.grid = InProcessGrid(app_of(clients()), 4)
        with _flower.identity(self.grid.run_id), _flower.quiet(50):
            run_of(strategy).prepare(start_arrays())
            strategy.configure_train(1, start_arrays(), ConfigRecord(), self.grid)
            # Whoever has a round 0 knows the plan by now: it travels again when it is renewed.
            run_of(strategy)._adopt(run_of(strategy)._setting_of(strategy.state))
            self.message = strategy.configure_train(2, start_arrays(), ConfigRecord(), self.grid)[0]
        content = self.message.content
        self.fco = dict(content["fco"])
        self.header = json.loads(self.fco["plan-header"])
        self.plan_arrays = {name: array.numpy() for name, array in content.get("fco-plan", {}).items()}
        self.arrays = dict(content["arrays"])
        self.more = {}
        self.header_text = None
        self.group = "2"

    def plan(self, path, value):
        """Set one entry of the plan's header; `path` is keys with dots."""
        *way, last = path.split(".")
        place = self.header
        for key in way:
            place = place[key]
        place[last] = value

    def send(self, app=None):
        """Return the answer; the plan's digest is right, as that of a liar who knows the protocol."""
        content = copy.copy(self.message.content)
        spec = Spec(self.header, self.plan_arrays)
        fco = dict(self.fco)
        if isinstance(fco.get("plan-header"), str):
            if self.header_text is not None:
                fco["plan-header"] = self.header_text
                fco["plan"] = digest_of(self.header_text)
            elif spec.to_json() != fco["plan-header"]:
                fco["plan-header"], fco["plan"] = spec.to_json(), spec.digest()
        content["fco"] = ConfigRecord(fco)
        content["arrays"] = ArrayRecord(self.arrays)
        if self.plan_arrays:
            content["fco-plan"] = ArrayRecord({name: Array(array) for name, array in self.plan_arrays.items()})
        for name, record in self.more.items():
            content[name] = record
        message = _flower.with_content(self.message, content)
        message.metadata.__dict__["_group_id"] = self.group
        with _flower.identity(self.grid.run_id):
            return (app or self.grid.client_app)(message, self.grid.contexts[self.message.metadata.dst_node_id])


def digest_of(text):
    """What the client will compute, if it gets so far."""
    try:
        return Spec(json.loads(text), {}).digest()
    except (ValueError, RecursionError, AttributeError):
        return "f" * 32


def fco(name, value):
    def change(hostile):
        if value is None:
            del hostile.fco[name]
        else:
            hostile.fco[name] = value

    return change


def plan(path, value):
    return lambda hostile: hostile.plan(path, value)


def without(key):
    return lambda hostile: hostile.header.pop(key)


def header_text(text):
    def change(hostile):
        hostile.header_text = text

    return change


def vector(name, array):
    def change(hostile):
        if array is None:
            del hostile.arrays[name]
        else:
            hostile.arrays[name] = array if isinstance(array, Array) else Array(array)

    return change


def group(value):
    def change(hostile):
        hostile.group = value

    return change


def regularizer(kind, arrays=None, **values):
    def change(hostile):
        hostile.header["regularizer"] = {"family": "regularizer", "kind": kind, **values}
        hostile.plan_arrays = {f"regularizer/{name}": array for name, array in (arrays or {}).items()}

    return change


def work(**values):
    return fco("work", json.dumps({"kind": "first-order", "steps": 3, "epochs": None, "batch-size": 5, **values}))


def minimise(**values):
    known = {"kind": "minimise", "engine": "auto", "tolerance": 1e-8, "rule": "gradient", "max-iterations": 10}
    return fco("work", json.dumps({**known, **values}))


def nested(depth):
    """A specification in a specification in a specification."""
    inner = {"family": "regularizer", "kind": "l1", "strength": 0.1}
    text = json.dumps(inner)
    opening = '{"family":"regularizer","kind":"per_parameter","patterns":{"$mapping":[["*",{"$nested":'
    return opening * depth + text + "}]]}}" * depth


def raw(data, dtype="float64", shape=(D,), stype="numpy.ndarray"):
    return Array(dtype, shape, stype, data)


def npy(header, payload=b""):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + payload


EIGHT_TERABYTES = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"

FED_DUAL_AVG = {
    # --- the numbers of the round
    **{f"client-lr {what}": fco("client-lr", value) for what, value in ABSURD.items()},
    **{f"elapsed {what}": fco("elapsed", value) for what, value in ABSURD.items()},
    "client-lr zero": fco("client-lr", 0.0),
    "client-lr a list": fco("client-lr", [0.1, 0.2]),
    "client-lr absent": fco("client-lr", None),
    "elapsed a list": fco("elapsed", [1.0]),
    "elapsed absent": fco("elapsed", None),
    "a number that is NaN": fco("number:x", NAN),
    "a number that is infinite": fco("number:x", INF),
    "a number that is text": fco("number:x", "ten"),
    "a number that is a list": fco("number:x", [1.0]),
    "a number that is huge": fco("number:x", -1e301),
    # --- the round's work
    "1e12 steps": work(steps=10**12),
    "1e400 steps": work(steps=10**400),
    "1e12 epochs": work(steps=None, epochs=10**12),
    "1e12 steps of the plan": plan("work.steps", 10**12),
    "no steps": work(steps=0),
    "negative steps": work(steps=-3),
    "half a step": work(steps=1.5),
    "steps as text": work(steps="many"),
    "steps true": work(steps=True),
    "steps infinite": work(steps=INF),
    "steps and epochs": work(epochs=2),
    "epochs NaN": work(steps=None, epochs=NAN),
    "no batch": work(**{"batch-size": 0}),
    "a negative batch": work(**{"batch-size": -5}),
    "a batch as a list": work(**{"batch-size": [5]}),
    "work of another kind": work(kind="mine-bitcoin"),
    "work of an unhashable kind": work(kind=["first-order"]),
    "work with more": work(gpu=True),
    "work that is no JSON": fco("work", "{steps: 3"),
    "work that is a list": fco("work", "[1, 2]"),
    "work that is a number": fco("work", "17"),
    "work that is null": fco("work", "null"),
    "work nested deeply": fco("work", "[" * 100_000),
    "work as a number": fco("work", 3),
    "a minimisation for a solver that takes steps": minimise(),
    "1e12 iterations": minimise(**{"max-iterations": 10**12}),
    "a tolerance of zero": minimise(tolerance=0.0),
    "a tolerance that is NaN": minimise(tolerance=NAN),
    "an unknown rule": minimise(rule="mood"),
    "an engine that is a number": minimise(engine=3),
    # --- the plan as a whole
    "a digest that is not the plan's": fco("plan", "0" * 32),
    "no digest": fco("plan", None),
    "a plan that is no JSON": header_text("{"),
    "a plan that is a list": header_text("[]"),
    "a plan that is a number": header_text("1"),
    "an empty plan": header_text("{}"),
    "a plan nested deeply": header_text('{"layout":' * 50_000),
    "a plan of two megabytes": header_text('{"layout": "' + "x" * 2_000_000 + '"}'),
    "a plan as a number": lambda h: h.fco.update({"plan-header": 7, "plan": "e" * 32}),
    **{
        f"a plan without {key}": without(key)
        for key in ("solver", "layout", "regularizer", "mirror-map", "scope", "work", "seed", "wire-dtype", "options")
    },
    **{
        f"{key} {what}": plan(key, value)
        for key in ("solver", "layout", "regularizer", "mirror-map", "scope", "work", "wire-dtype")
        for what, value in {"null": None, "a number": 3, "a list": ["x"], "an object": {"x": 1}}.items()
    },
    "an unknown solver": plan("solver", "quantum_descent"),
    "seed negative": plan("seed", -1),
    "seed a half": plan("seed", 1.5),
    "seed text": plan("seed", "x"),
    "seed NaN": plan("seed", NAN),
    "seed of 2**70": plan("seed", 2**70),
    "options a list": plan("options", [1]),
    "options text": plan("options", "x"),
    "options null": plan("options", None),
    "an option that is infinite": plan("options.client-prox", INF),
    "an option that is a list": plan("options.client-prox", [1]),
    "a complex wire": plan("wire-dtype", "complex128"),
    "an unknown scope": plan("scope", "all"),
    "plan's work negative": plan("work.batch-size", -1),
    # --- the layout
    "1e9 parameters": plan("layout", [["coefficients", [10**9], "float64", 0, True]]),
    "1e18 parameters": plan("layout", [["coefficients", [10**9, 10**9], "float64", 0, True]]),
    "a negative shape": plan("layout", [["coefficients", [-6], "float64", 0, True]]),
    "no arrays": plan("layout", []),
    "another shape": plan("layout", [["coefficients", [9], "float64", 0, True]]),
    "other names": plan("layout", [["weights", [6], "float64", 0, True], ["intercept", [1], "float64", 6, False]]),
    "another order": plan(
        "layout", [["intercept", [1], "float64", 0, False], ["coefficients", [6], "float64", 1, True]]
    ),
    "overlapping arrays": plan(
        "layout", [["coefficients", [6], "float64", 0, True], ["intercept", [1], "float64", 0, True]]
    ),
    "an array twice": plan("layout", [["a", [6], "float64", 0, True], ["a", [1], "float64", 6, True]]),
    "entries too short": plan("layout", [["coefficients", [6]]]),
    "an unknown dtype": plan("layout", [["coefficients", [6], "float1024", 0, True]]),
    "an offset that is NaN": plan("layout", [["coefficients", [6], "float64", NAN, True]]),
    "a shape that is text": plan("layout", [["coefficients", "six", "float64", 0, True]]),
    # --- psi and h
    **{f"strength {what}": plan("regularizer.strength", value) for what, value in ABSURD.items() if what != "huge"},
    "strength a list": plan("regularizer.strength", [1.0, 2.0]),
    "strength an object": plan("regularizer.strength", {"$array": "nowhere"}),
    "strength a mapping": plan("regularizer.strength", {"$mapping": 3}),
    "a regularizer with more": plan("regularizer.power", 2),
    "an unknown regularizer": plan("regularizer.kind", "l17"),
    "a kind that is a list": plan("regularizer.kind", ["l1"]),
    "a family that is a list": plan("regularizer.family", ["regularizer"]),
    "a mirror map as regularizer": plan("regularizer", {"family": "mirror map", "kind": "euclidean"}),
    "weights of another length": regularizer(
        "l1", {"weights": np.ones(40)}, strength=0.1, weights={"$array": "weights"}
    ),
    "weights that are NaN": regularizer(
        "l1", {"weights": np.full(6, NAN)}, strength=0.1, weights={"$array": "weights"}
    ),
    "weights that are negative": regularizer(
        "l1", {"weights": -np.ones(6)}, strength=0.1, weights={"$array": "weights"}
    ),
    "specifications nested deeply": header_text(nested(300)),
    **{
        f"p-norm {what}": plan("mirror-map", {"family": "mirror map", "kind": "p-norm", "p": value})
        for what, value in {**ABSURD, "one": 1.0, "a list": [2.0]}.items()
        if what != "huge"
    },
    "an unknown mirror map": plan("mirror-map.kind", "bregman"),
    "a regularizer as mirror map": plan("mirror-map", {"family": "regularizer", "kind": "l1", "strength": 0.1}),
    # --- the vectors
    "no dual": vector("dual", None),
    "dual NaN": vector("dual", np.full(D, NAN)),
    "dual infinite": vector("dual", np.full(D, INF)),
    "dual of another length": vector("dual", np.zeros(D + 1)),
    "dual of length 1": vector("dual", np.zeros(1)),
    "dual a matrix": vector("dual", np.zeros((D, 1))),
    "dual of integers": vector("dual", np.zeros(D, dtype=np.int64)),
    "dual complex": vector("dual", np.zeros(D, dtype=complex)),
    "dual pickled": vector("dual", raw(b"cos\nsystem\n", stype="pickle")),
    "dual of no bytes": vector("dual", raw(b"")),
    "dual zipped": vector("dual", raw(b"PK\x03\x04junk")),
    "dual cut": vector("dual", raw(Array(np.zeros(D)).data[:-5])),
    "dual with bytes after it": vector("dual", raw(Array(np.zeros(D)).data + b"x")),
    "dual of eight terabytes": vector("dual", raw(npy(EIGHT_TERABYTES))),
    "dual with minus signs": vector("dual", raw(npy(b"-" * 9_000))),
    "dual that holds objects": vector("dual", raw(npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (7,), }\n"))),
    "a pass-through array that the plan has not": vector("pass:x", np.zeros(2)),
    # --- the envelope
    "no round": group(""),
    "a round that is text": group("first"),
    "a negative round": group("-1"),
    "a round that is a fraction": group("1.5"),
    "epoch text": lambda h: h.fco.update({"epoch": "x", "accepted": 1}),
    "accepted infinite": lambda h: h.fco.update({"epoch": 0, "accepted": INF}),
    "accepted without epoch": lambda h: h.fco.update({"accepted": 1}),
}

TRACKING = {
    "advance zero": lambda h: numbers_of(h, advance=0.0),
    **{f"advance {what}": lambda h, v=value: numbers_of(h, advance=v) for what, value in ABSURD.items()},
    "no dual and no memory": lambda h: (h.fco.update({"accepted": -1}), vector("dual", None)(h)),
    "restored of another length": lambda h: h.more.update(
        {"fco-restored": ArrayRecord({"own": Array(np.zeros(3)), "dual": Array(np.zeros(D))})}
    ),
    "restored NaN": lambda h: h.more.update(
        {"fco-restored": ArrayRecord({"own": Array(np.full(D, NAN)), "dual": Array(np.zeros(D))})}
    ),
    "restored without own": lambda h: (
        h.fco.pop("number:gradient", None),
        h.more.update({"fco-restored": ArrayRecord({"dual": Array(np.zeros(D))})}),
    ),
    "control NaN": vector("control", np.full(D, NAN)),
}

MIRROR_DESCENT = {
    "no primal": vector("primal", None),
    "primal NaN": vector("primal", np.full(D, NAN)),
    "no learning rate": fco("client-lr", None),
}


def numbers_of(hostile, **numbers):
    """A second round, in which the client has a memory that it was sent."""
    hostile.fco.pop("number:gradient", None)
    hostile.arrays.pop("control", None)
    hostile.fco.update({f"number:{name}": value for name, value in numbers.items()})
    hostile.fco.update({"epoch": 0, "accepted": 0})
    hostile.more["fco-restored"] = ArrayRecord({"own": Array(np.zeros(D)), "dual": Array(np.ones(D))})


STRATEGIES = {
    "FedDualAvg": (lambda: FedDualAvg(regularizer=L1(0.3), client_lr=0.02, work=Steps(3, batch_size=5)), FED_DUAL_AVG),
    "FedDAGT": (lambda: FedDAGT(regularizer=L1(0.3), client_lr=0.02, work=Epochs(1, batch_size=5)), TRACKING),
    "FedMid": (lambda: FedMid(regularizer=L1(0.3), client_lr=0.02, work=Epochs(1, batch_size=5)), MIRROR_DESCENT),
}
CASES = [(strategy, case) for strategy, (_, cases) in STRATEGIES.items() for case in cases]


@together(("strategy", "case"), CASES)
def test_an_absurd_message_is_a_clear_error_at_once(strategy, case):
    make, cases = STRATEGIES[strategy]
    hostile = Hostile(make())
    good = Hostile(make())
    good.grid = hostile.grid
    good.send()
    cases[case](hostile)
    # Of this process: a machine that is busy with something else does not count.
    began = time.process_time()
    with pytest.raises(FlwrFcoError) as caught:
        hostile.send()
    assert time.process_time() - began < 1.0
    text = str(caught.value)
    assert len(text) < 2_000
    assert not isinstance(caught.value, ClientError)
    # The node lives: it answers the next message as if nothing had been.
    answer = good.send()
    assert np.isfinite(answer.content["arrays"]["increment"].numpy()).all()


def test_there_are_as_many_as_the_field_has_fields():
    assert len(CASES) >= 168


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(max_steps=2), r"asks for 3 step\(s\) in batches of 5: 3 local steps; this client allows max_steps=2"),
        (Limits(max_parameters=6), "asks for a model of 7 parameters; this client allows max_parameters=6"),
        (Limits(max_plan=100), "a plan of .* characters; this client allows max_plan=100"),
        (
            Limits(max_parameters=20),
            "all 3 local points: 21 numbers in the reply; this client allows max_parameters=20",
        ),
        (Limits(max_number=0.01), "asks for client-lr 0.02; this client allows max_number=0.01"),
    ],
)
def test_an_owner_may_allow_less(limits, text):
    hostile = Hostile(STRATEGIES["FedDualAvg"][0]())
    hostile.plan("options.trajectory", limits.max_parameters == 20)
    objectives = clients()
    with pytest.raises(ConfigurationError, match=text):
        hostile.send(client_app(lambda context: objectives[0], limits=limits))


@pytest.mark.parametrize("value", [0, -1, NAN, "ten", True, None])
def test_a_limit_that_is_none_is_refused(value):
    with pytest.raises(ConfigurationError, match=re.escape(f"max_seconds={value!r}")):
        Limits(max_seconds=value)


class Slow(LeastSquares):
    """Takes its time for a gradient."""

    def gradient(self, w, batch=None, out=None):
        time.sleep(0.02)
        return super().gradient(w, batch, out)


@pytest.mark.parametrize("strategy", ["FedDualAvg", "FedMid"])
def test_the_time_is_looked_at_between_two_batches(strategy):
    hostile = Hostile(STRATEGIES[strategy][0]())
    hostile.fco["work"] = json.dumps(FirstOrder(steps=10_000, batch_size=5).to_header())
    slow = Slow(clients()[0].features, clients()[0].targets)
    began = time.process_time()
    with pytest.raises(ConfigurationError, match=r"stopped after 0\.1 seconds, in which it took [0-9]+ minibatches"):
        hostile.send(client_app(lambda context: slow, limits=Limits(max_seconds=0.1)))
    assert time.process_time() - began < 1.0


def test_the_time_is_looked_at_between_two_compiled_epochs():
    hostile = Hostile(STRATEGIES["FedDualAvg"][0]())
    hostile.fco["work"] = json.dumps(FirstOrder(epochs=900_000 // 3, batch_size=5).to_header())
    began = time.process_time()
    with pytest.raises(ConfigurationError, match=r"stopped after 0\.05 seconds"):
        hostile.send(client_app(lambda context: clients()[0], limits=Limits(max_seconds=0.05)))
    assert time.process_time() - began < 1.0


# --- the time of every solver and every engine ---------------------------------------------------------------------

#: The tests' own solvers are registered in the same table.
SOLVERS = sorted(name for name, half in halves().items() if half.__module__.startswith("flwr_fco."))
#: In the clock of the tests: not a whole number, so that nothing hangs on a rounding.
SECONDS = 3.5
STOPPED = (
    r"the local solver was stopped after 3\.5 seconds, in which it took [0-9]+ (minibatches or epochs|steps|gradients "
    r"of a minimisation|products with the Hessian of a minimisation): this client's limit is max_seconds\. Ask for "
    r"less work, or let the client's owner raise the limit"
)


class Clock:
    """Time that passes only where the test says so."""

    def __init__(self, per_look=0.0):
        self.now, self.per_look, self.looks = 0.0, per_look, 0

    def monotonic(self):
        self.now += self.per_look
        self.looks += 1
        return self.now


@pytest.fixture
def clock(monkeypatch):
    stands = Clock()
    monkeypatch.setattr(limits_module, "time", stands)
    monkeypatch.setattr(clock_module, "time", stands)
    return stands


def second_each(objective, clock):
    """Return an objective that takes a second for each gradient and each product with its Hessian."""
    kind = type(objective)

    class Slowly(kind):
        def gradient(self, w, batch=None, out=None):
            clock.now += 1.0
            return kind.gradient(objective, w, batch, out)

        def hessian_product(self, w, v):
            clock.now += 1.0
            return kind.hessian_product(objective, w, v)

    slow = copy.copy(objective)
    slow.__class__ = Slowly
    return slow


def least_squares(seed=3):
    """A problem on which no method gets to a gradient of 1e-14 at once."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((40, FEATURES)) * np.geomspace(1.0, 10.0, FEATURES)
    return LeastSquares(features, rng.standard_normal(40), l2=1e-2)


def logistic(seed=3):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((40, FEATURES)) * np.geomspace(0.1, 10.0, FEATURES)
    return Logistic(features, rng.integers(0, 2, 40), l2=1e-3)


def saddle(seed=3):
    coupling = 0.5 * np.random.default_rng(seed).standard_normal((3, 3))
    return QuadraticSaddle(np.eye(3), coupling, np.eye(3), linear=np.ones(3), offset=np.ones(3), num_examples=30)


def quadratic(seed=3):
    return quadratics(count=1, d=7, seed=seed)[0]


class Client:
    """One client of a strategy after a round that counted, and the message of the next one."""

    def __init__(self, strategy, make_objective):
        strategy.fraction_evaluate = 0.0
        # Of different data: where all are the same, the second round has nothing to do.
        objectives = [make_objective(seed) for seed in range(4)]
        self.objective, layout = objectives[0], objectives[0].layout
        self.grid = InProcessGrid(app_of(objectives), 4)
        start = ArrayRecord({n: Array(a) for n, a in layout.unflatten(0.1 * np.ones(layout.size)).items()})
        with _flower.identity(self.grid.run_id), _flower.quiet(50):
            run_of(strategy).prepare(start)
            messages = strategy.configure_train(1, start, ConfigRecord(), self.grid)
            strategy.aggregate_train(1, self.grid.send_and_receive(messages))
            self.message = strategy.configure_train(2, start, ConfigRecord(), self.grid)[0]
        self.context = self.grid.contexts[self.message.metadata.dst_node_id]

    def ask(self, clock=None, limits=None, **work):
        """Return the answer, with other work than the strategy asks for; a second passes for each gradient."""
        objective = self.objective if clock is None else second_each(self.objective, clock)
        app = client_app(lambda context: objective, limits=limits)
        content = self.message.content.copy()
        if work:
            content["fco"] = ConfigRecord({**content["fco"], "work": json.dumps(FirstOrder(**work).to_header())})
        message = _flower.with_content(self.message, content)
        with _flower.identity(self.grid.run_id):
            return app(message, self.context)


def words_and_bytes(records):
    """Return what records hold, for a comparison to the bit."""
    return {
        name: {key: value.data if isinstance(value, Array) else value for key, value in record.items()}
        for name, record in records.items()
    }


def held_to_the_limit(strategy, make_objective, clock, **work):
    """A client that is stopped says so, remembers nothing of it, and answers the next message as if it had not been."""
    client, twin = Client(strategy(), make_objective), Client(strategy(), make_objective)
    before = words_and_bytes(client.context.state)
    with pytest.raises(ConfigurationError, match=STOPPED):
        client.ask(clock, Limits(max_seconds=SECONDS), **work)
    assert words_and_bytes(client.context.state) == before
    answer, expected = client.ask(), twin.ask()
    assert words_and_bytes(answer.content) == words_and_bytes(expected.content)
    assert words_and_bytes(client.context.state) == words_and_bytes(twin.context.state)


def made(name):
    kind = kind_of(name)
    # The engines have tests of their own; this one takes more than a step for any problem.
    options = {"client_lr": 0.01, "batch_size": 5}
    options["work"] = (Steps(4, batch_size=5), Minimise("newton-cg", tolerance=1e-12))
    options |= CONSTANTS.get(name, {})
    return kind(**fitting(kind, options))


def works_in_steps(name):
    known = kind_of(name).__dataclass_fields__
    return "batch_size" in known or isinstance(known["work"].default, FirstOrder)


def test_every_local_solver_belongs_to_a_strategy_that_the_time_is_tested_with():
    given = FedNewton(), FedNewton(hessian="none"), FedNewton(hessian="none", regularizer=L2Squared(1.0))
    chosen_by_an_option = {algorithm_class(own).name for own in given}
    named = {method_of(kind).algorithm.name for kind in ALL_STRATEGIES.values()}
    assert sorted(named | chosen_by_an_option) == SOLVERS


#: Strategies whose clients work in loops: one evaluation is a pass or two over the data.
LOOPS = [name for name in ALL_STRATEGIES if name != "FedNewton"]


def looks_at_the_time(name, clock):
    work = {"steps": 1_000, "batch_size": 5} if works_in_steps(name) else {}
    held_to_the_limit(lambda: made(name), saddle if name in SADDLE else least_squares, clock, **work)
    # What was begun within the time is finished: a step, which takes two gradients at most.
    assert SECONDS < clock.now < SECONDS + 3.0


def looks_at_the_time_in_compiled_loops(name, clock):
    work = {"epochs": 1_000, "batch_size": 5} if works_in_steps(name) else {}
    client = Client(made(name), least_squares)
    clock.per_look = 1.0
    with pytest.raises(ConfigurationError, match=STOPPED):
        client.ask(limits=Limits(max_seconds=SECONDS), **work)
    assert clock.now < SECONDS + 2.0


@pytest.mark.parametrize("name", by_class(LOOPS))
def test_every_local_solver_looks_at_the_time(name, clock):
    looks_at_the_time(name, clock)


@pytest.mark.parametrize("name", by_class(name for name in LOOPS if name not in SADDLE))
def test_every_local_solver_looks_at_the_time_where_the_loss_has_a_compiled_loop(name, clock):
    looks_at_the_time_in_compiled_loops(name, clock)


PROBLEMS = {"quadratic": quadratic, "least squares": least_squares, "logistic": logistic}
RUNS = [(engine, problem) for engine in ENGINES for problem in PROBLEMS if (engine, problem) != ("exact", "logistic")]


def minimising(engine):
    return FedDR(work=Minimise(engine=engine, tolerance=1e-15, max_iterations=50), step=1e3)


def test_every_engine_is_stopped_on_some_problem():
    assert {engine for engine, _ in RUNS} == set(ENGINES)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_looks_at_the_time_between_gradients(engine, clock):
    held_to_the_limit(lambda: minimising(engine), quadratic, clock)
    assert SECONDS < clock.now < SECONDS + 2.0


@pytest.mark.parametrize(("engine", "problem"), RUNS)
def test_every_engine_looks_at_the_time_between_products_with_the_features(engine, problem, clock):
    client = Client(minimising(engine), PROBLEMS[problem])
    client.objective = PROBLEMS[problem]()  # of which nothing is known yet, such as a factorisation
    clock.per_look = 1.0
    with pytest.raises(ConfigurationError, match=STOPPED):
        client.ask(limits=Limits(max_seconds=SECONDS))
    assert clock.now < SECONDS + 2.0
