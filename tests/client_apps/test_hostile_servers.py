"""What a server says: every field of a training message with absurd values is an error that says so, at once."""

import json
import math
import re
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from problems import FEATURES, app_of, clients, start_arrays
from together import together

from flwr_fco.client_apps import Limits, client_app
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ClientError, ConfigurationError, FlwrFcoError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDAGT, FedDualAvg, FedMid, Steps

D = FEATURES + 1
NAN, INF = math.nan, math.inf
#: Values that no field of a message has a use for.
ABSURD = {"NaN": NAN, "infinite": INF, "minus infinity": -INF, "negative": -1.0, "text": "x"}


class Hostile:
    """A message of one of our strategies in pieces: the plan's header and arrays, the numbers, the vectors."""

    def __init__(self, strategy):
        strategy.fraction_evaluate = 0.0
        self.grid = InProcessGrid(app_of(clients()), 4)
        with self.grid.identity(), quiet(50):
            strategy.prepare(start_arrays())
            self.message = strategy.configure_train(1, start_arrays(), ConfigRecord(), self.grid)[0]
        content = self.message.content
        self.fco, self.arrays = dict(content["fco"]), dict(content["arrays"])
        self.header = json.loads(self.fco["plan"])
        self.plan_arrays = {name: array.numpy() for name, array in content.get("fco-plan", {}).items()}
        self.more, self.text, self.group = {}, None, "1"

    def plan(self, path, value):
        """Set one entry of the plan's header; `path` is keys with dots."""
        *way, last = path.split(".")
        place = self.header
        for key in way:
            place = place[key]
        place[last] = value

    def send(self, app=None):
        """Return the answer."""
        content = self.message.content.copy()
        plan = {"plan": json.dumps(self.header) if self.text is None else self.text} if "plan" in self.fco else {}
        content["fco"], content["arrays"] = ConfigRecord({**self.fco, **plan}), ArrayRecord(self.arrays)
        if self.plan_arrays:
            content["fco-plan"] = ArrayRecord({name: Array(array) for name, array in self.plan_arrays.items()})
        for name, record in self.more.items():
            content[name] = record
        node = self.message.metadata.dst_node_id
        with self.grid.identity():
            message = Message(content, node, "train", group_id=self.group)
            return (app or self.grid.client_app)(message, self.grid.context(node))


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


def plan_text(text):
    def change(hostile):
        hostile.text = text

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
    **{f"{name} {what}": fco(name, value) for name in ("client-lr", "elapsed") for what, value in ABSURD.items()},
    "client-lr zero": fco("client-lr", 0.0),
    "client-lr a list": fco("client-lr", [0.1, 0.2]),
    "client-lr absent": fco("client-lr", None),
    "elapsed a list": fco("elapsed", [1.0]),
    "elapsed absent": fco("elapsed", None),
    "a number that is NaN": fco("number:x", NAN),
    "a number that is infinite": fco("number:x", INF),
    "a number that is text": fco("number:x", "ten"),
    "a number that is a list": fco("number:x", [1.0]),
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
    "no plan": fco("plan", None),
    "a plan that is no JSON": plan_text("{"),
    "a plan that is a list": plan_text("[]"),
    "a plan that is a number": plan_text("1"),
    "an empty plan": plan_text("{}"),
    "a plan nested deeply": plan_text('{"layout":' * 50_000),
    "a plan of two megabytes": plan_text('{"layout": "' + "x" * 2_000_000 + '"}'),
    "a plan as a number": plan_text(7),
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
    **{f"strength {what}": plan("regularizer.strength", value) for what, value in ABSURD.items()},
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
    "specifications nested deeply": plan_text(nested(300)),
    **{
        f"p-norm {what}": plan("mirror-map", {"family": "mirror map", "kind": "p-norm", "p": value})
        for what, value in {**ABSURD, "one": 1.0, "a list": [2.0]}.items()
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
    "a stamp that is a number": fco("stamp", 7),
    "a stamp that is a list": fco("stamp", ["x"]),
}

TRACKING = {
    "advance zero": lambda h: numbers_of(h, advance=0.0),
    **{f"advance {what}": lambda h, v=value: numbers_of(h, advance=v) for what, value in ABSURD.items()},
    "restored of another length": lambda h: h.more.update(
        {"fco-restored": ArrayRecord({"own": Array(np.zeros(3)), "dual": Array(np.zeros(D))})}
    ),
    "restored NaN": lambda h: h.more.update(
        {"fco-restored": ArrayRecord({"own": Array(np.full(D, NAN)), "dual": Array(np.zeros(D))})}
    ),
    "restored without own": lambda h: h.more.update({"fco-restored": ArrayRecord({"dual": Array(np.zeros(D))})}),
    "control NaN": vector("control", np.full(D, NAN)),
}

MIRROR_DESCENT = {
    "no primal": vector("primal", None),
    "primal NaN": vector("primal", np.full(D, NAN)),
    "no learning rate": fco("client-lr", None),
}


def numbers_of(hostile, **numbers):
    """A second round, in which the client has a memory that it was sent."""
    hostile.arrays = {"dual": Array(np.zeros(D))}
    hostile.fco.update({f"number:{name}": value for name, value in numbers.items()})
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
        (Limits(max_iterations=5), "asks for a minimisation of 10 iterations; this client allows max_iterations=5"),
    ],
)
def test_an_owner_may_allow_less(limits, text):
    hostile = Hostile(STRATEGIES["FedDualAvg"][0]())
    hostile.plan("options.trajectory", limits.max_parameters == 20)
    if limits.max_iterations == 5:
        minimise()(hostile)
    objectives = clients()
    with pytest.raises(ConfigurationError, match=text):
        hostile.send(client_app(lambda context: objectives[0], limits=limits))


@pytest.mark.parametrize("value", [0, -1, NAN, "ten", True, None])
def test_a_limit_that_is_none_is_refused(value):
    with pytest.raises(ConfigurationError, match=re.escape(f"max_steps={value!r}")):
        Limits(max_steps=value)
