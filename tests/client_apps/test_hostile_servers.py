"""What a server says: every field of a training message with absurd values is an error that says so, at once."""

import json
import math
import re
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from fuzz.budget import paths, replaced
from problems import D, app_of, arrays_of, clients, start_arrays

import flwr_fco.tables  # noqa: F401 (it registers answers of its own)
from flwr_fco.client_apps import Limits, client_app
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ClientError, ConfigurationError, FlwrFcoError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import encode_question
from flwr_fco.mirror_maps import PNorm
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDAGT, FedDualAvg, FedMid, FedNewton, Minimise, Steps, Strengths

NAN = math.nan
INF = math.inf
#: Values that no field of a message has a use for.
ABSURD = {"NaN": NAN, "infinite": INF, "negative": -1.0, "text": "x", "a list": [0.1, 0.2]}


class Hostile:
    """A message of one of our strategies in pieces: the plan's header and arrays, the numbers, the vectors."""

    def __init__(self, strategy):
        strategy.fraction_evaluate = 0.0
        self.grid = InProcessGrid(app_of(clients()), 4)
        with self.grid.identity(), quiet(50):
            strategy.prepare(start_arrays())
            self.message = strategy.configure_train(1, start_arrays(), ConfigRecord(), self.grid)[0]
        content = self.message.content
        self.fco = dict(content["fco"])
        self.arrays = dict(content["arrays"])
        self.more = {}
        self.group = "1"
        self.header = json.loads(self.fco["plan"])

    def send(self, app=None):
        """Return the answer."""
        content = self.message.content.copy()
        if isinstance(self.fco.get("plan"), str) and self.fco["plan"] == dict(content["fco"])["plan"]:
            self.fco["plan"] = json.dumps(self.header)
        content["fco"], content["arrays"] = ConfigRecord(self.fco), ArrayRecord(self.arrays)
        content.update({name: arrays_of(arrays) for name, arrays in self.more.items()})
        with self.grid.identity():
            message = Message(content, self.message.metadata.dst_node_id, "train", group_id=self.group)
            return (app or self.grid.client_app)(message, self.grid.context(message.metadata.dst_node_id))


def set_in(place, name, value):
    if value is None:
        del place[name]
    else:
        place[name] = value


def fco(name, value):
    return lambda hostile: set_in(hostile.fco, name, value)


def plan(path, value):
    """Set one entry of the plan's header; `path` is keys with dots."""

    def change(hostile):
        *way, last = path.split(".")
        place = hostile.header
        for key in way:
            place = place[key]
        place[last] = value

    return change


def vector(name, array):
    given = array if array is None or isinstance(array, Array) else Array(array)
    return lambda hostile: set_in(hostile.arrays, name, given)


def group(value):
    return lambda hostile: vars(hostile).update(group=value)


def weights(values):
    def change(hostile):
        psi = {**L1(0.1).to_spec().header, "weights": {"$array": "weights"}}
        hostile.header["regularizer"] = psi
        hostile.more = {"fco-plan": {"regularizer/weights": values}}

    return change


def work(**values):
    return fco("work", json.dumps({**Steps(3, batch_size=5).to_spec().header, **values}))


def minimise(**values):
    return fco("work", json.dumps({**Minimise().to_spec().header, **values}))


def nested(depth):
    """A specification in a specification in a specification."""
    opening = '{"family":"regularizer","kind":"per_parameter","patterns":{"$mapping":[["*",'
    return opening * depth + '{"family":"regularizer","kind":"l1","strength":0.1}' + "]]}}" * depth


def layout(*entries):
    return plan("layout", {"$layout": [list(entry) for entry in entries]})


def raw(data, stype="numpy.ndarray"):
    return vector("dual", Array("float64", (D,), stype, data))


def npy(header):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


DUAL = Array(np.zeros(D)).data
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
    "a minimisation for a solver that takes steps": minimise(),
    "1e12 iterations": minimise(max_iterations=10**12),
    # --- the plan as a whole
    "no plan": fco("plan", None),
    **{
        f"the plan {text:.12}": fco("plan", text) for text in ("{", "[]", "1", "{}", '{"layout":' * 50_000, nested(300))
    },
    "a plan of two megabytes": fco("plan", '{"layout": "' + "x" * 2_000_000 + '"}'),
    "a plan as a number": fco("plan", 7),
    "an unknown solver": plan("solver", "quantum_descent"),
    "an option that is infinite": plan("options", {"$mapping": [["client_prox", INF]]}),
    # --- the layout
    "1e18 parameters": layout(("coefficients", [10**9, 10**9], "float64", 0, True)),
    "another shape": layout(("coefficients", [9], "float64", 0, True)),
    "other names": layout(("weights", [6], "float64", 0, True), ("intercept", [1], "float64", 6, False)),
    "another order": layout(("intercept", [1], "float64", 0, False), ("coefficients", [6], "float64", 1, True)),
    "overlapping arrays": layout(("coefficients", [6], "float64", 0, True), ("intercept", [1], "float64", 0, True)),
    # --- psi and h
    "a regularizer with more": plan("regularizer.power", 2),
    "a mirror map as regularizer": plan("regularizer", {"family": "mirror map", "kind": "euclidean"}),
    "weights of another length": weights(np.ones(40)),
    "weights that are NaN": weights(np.full(6, NAN)),
    "weights that are negative": weights(-np.ones(6)),
    **{f"p {p}": plan("mirror_map", {**PNorm(3.0).to_spec().header, "p": p}) for p in (NAN, -1.0, 1.0, [2])},
    # --- the vectors
    "no dual": vector("dual", None),
    "dual NaN": vector("dual", np.full(D, NAN)),
    "dual of another length": vector("dual", np.zeros(D + 1)),
    "dual pickled": raw(b"cos\nsystem\n", "pickle"),
    "dual cut": raw(DUAL[:-5]),
    "dual of eight terabytes": raw(npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n")),
    "dual with minus signs": raw(npy(b"-" * 9_000)),
    "dual that holds objects": raw(npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (7,), }\n")),
    "a pass-through array that the plan has not": vector("pass:x", np.zeros(2)),
    # --- the envelope
    **{f"round {value!r}": group(value) for value in ("", "first", "-1", "1.5")},
}


def second_round(own=None, dual=None, **numbers):
    """A second round, in which the client has a memory that it was sent."""

    def change(hostile):
        hostile.arrays = {"dual": Array(np.zeros(D))}
        hostile.fco.update({f"number:{name}": value for name, value in numbers.items()})
        held = {"own": np.zeros(D) if own is None else own, "dual": np.ones(D) if dual is None else dual}
        hostile.more["fco-restored"] = {name: value for name, value in held.items() if value is not False}

    return change


TRACKING = {
    "restored of another length": second_round(own=np.zeros(3)),
    "restored NaN": second_round(own=np.full(D, NAN)),
    "restored without own": second_round(own=False),
    "control NaN": vector("control", np.full(D, NAN)),
}
MIRROR_DESCENT = {"no primal": vector("primal", None), "no learning rate": fco("client-lr", None)}
OPTIONS = {"regularizer": L1(0.3), "client_lr": 0.02}
STRATEGIES = {
    "FedDualAvg": (lambda: FedDualAvg(**OPTIONS, work=Steps(3, batch_size=5)), FED_DUAL_AVG),
    "FedDAGT": (lambda: FedDAGT(**OPTIONS, work=Epochs(1, batch_size=5)), TRACKING),
    "FedMid": (lambda: FedMid(**OPTIONS, work=Epochs(1, batch_size=5)), MIRROR_DESCENT),
}


@pytest.mark.parametrize(
    ("strategy", "case"), [(strategy, case) for strategy, (_, cases) in STRATEGIES.items() for case in cases]
)
def test_an_absurd_message_is_a_clear_error_at_once(strategy, case):
    make, cases = STRATEGIES[strategy]
    hostile, good = Hostile(make()), Hostile(make())
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
    assert np.isfinite(good.send().content["arrays"]["increment"].numpy()).all()


def test_every_entry_of_a_plan_is_checked():
    """Each in turn is what it cannot be, or is not there, as only options may."""
    hostile = Hostile(STRATEGIES["FedDualAvg"][0]())
    good = hostile.header
    ways = paths(hostile.header)
    assert len(ways) > 40
    for way in ways:
        for value in (NAN, INF, -1.0, [0.1, 0.2], {"$array": "nowhere"}, *([] if "options" in way else [...])):
            hostile.fco["plan"] = json.dumps(replaced(good, way, value))
            with pytest.raises(FlwrFcoError):
                pytest.fail(f"{way} {value}: {hostile.send()}")


@pytest.mark.parametrize(
    ("limits", "change", "text"),
    [
        ({"max_steps": 2}, None, r"3 step\(s\) in batches of 5: 3 local steps; this client allows max_steps=2"),
        ({"max_parameters": 6}, None, "asks for a model of 7 parameters; this client allows max_parameters=6"),
        ({"max_plan": 100}, None, "a plan of .* characters; this client allows max_plan=100"),
        (
            {"max_parameters": 20},
            plan("options", {"$mapping": [["output", "shadow"]]}),
            "all 3 local points: 21 numbers in the reply; this client allows max_parameters=20",
        ),
        ({"max_iterations": 5}, minimise(), "a minimisation of 10000 iterations; this client allows max_iterations=5"),
    ],
)
def test_an_owner_may_allow_less(limits, change, text):
    hostile = Hostile(STRATEGIES["FedDualAvg"][0]())
    objective = clients()[0]
    if change:
        change(hostile)
    with pytest.raises(ConfigurationError, match=text):
        hostile.send(client_app(lambda context: objective, limits=Limits(**limits)))


WIDE = 2_500


class Wide:
    """A site of many columns, and a server whose Newton steps ask for all of them."""

    def __init__(self, limits, strengths=None):
        loss = LeastSquares(np.zeros((4, WIDE)), np.zeros(4), intercept=False)
        #: What the site computes of it.
        self.asked = []
        loss.newton_block = loss.hessian_block = lambda w, on: (
            self.asked.append(on.size) or np.zeros(on.size * (on.size + 1) // 2)
        )
        loss.row_gradients = lambda w: self.asked.append(w.size)
        self.layout = loss.layout
        self.grid = InProcessGrid(client_app(lambda context: loss, limits=limits), 1)
        start = arrays_of({"coefficients": np.zeros(WIDE)})
        strategy = FedNewton(regularizer=L1(0.1), strengths=strengths, fraction_evaluate=0.0, min_train_nodes=1)
        with self.grid.identity(), quiet(50):
            strategy.min_available_nodes = 1
            strategy.prepare(start)
            self.content = strategy.configure_train(1, start, ConfigRecord(), self.grid)[0].content

    def ask(self, content, kind="train"):
        with self.grid.identity():
            return self.grid.client_app(Message(content, 2, kind, group_id="1"), self.grid.context(2)).content

    def train(self, sets, points=1, **numbers):
        """Ask for blocks at sets of columns: by name, how many of each point."""
        content = self.content.copy()
        arrays = {}
        for name, columns in sets.items():
            on = (np.arange(columns) + WIDE * np.arange(points)[:, None]).ravel().astype(np.int32)
            arrays |= {f"nonzeros:{name}": Array(on), name: Array(np.zeros(on.size))}
        content["arrays"] = ArrayRecord(arrays)
        reported = {f"number:{name}": value for name, value in {"points": float(points), **numbers}.items()}
        content["fco"] = ConfigRecord({**dict(content["fco"]), **reported})
        return self.ask(content)


@pytest.mark.parametrize("limit", [10_000, 3_000_000])
@pytest.mark.parametrize("sets", [{"primal": WIDE}, {"primal": 1, "working-set": WIDE}], ids=["points", "sets"])
def test_a_hessian_block_is_refused_by_its_entries_before_it_is_computed(limit, sets):
    """Of 2,500 columns 3,126,250 numbers, in the place of the 2,500 of the model."""
    site = Wide(Limits(max_parameters=limit))
    with pytest.raises(
        ConfigurationError, match=rf"Hessian blocks: 3.12875e\+06 numbers; .* max_parameters={re.escape(f'{limit:g}')}"
    ):
        site.train(sets)
    assert site.asked == []
    site.train({name: min(columns, 100) for name, columns in sets.items()})
    with pytest.raises(ConfigurationError, match="Hessian blocks"):
        site.train(sets)
    assert site.asked == [100]


def test_blocks_of_many_points_and_folds_are_refused_by_their_sum():
    site = Wide(Limits(max_parameters=1_000_000), strengths=Strengths(3, folds=2))
    counts = {"fold-0": 300.0, "fold-1": 0.0, "fold-2": 0.0, "validate": 0.0}
    with pytest.raises(ConfigurationError, match=r"Hessian blocks: 2.265e\+06 numbers"):
        site.train({"primal": 2, "wanted": 100}, 300, **counts)
    with pytest.raises(ConfigurationError, match=r"of points and folds: 1\.00003e\+07 iterations"):
        site.train({"primal": 2}, 300, **counts, folds=1e7)
    assert site.asked == []


@pytest.mark.parametrize("kind", ["estimates", "derivatives"])
def test_questions_that_take_second_derivatives_have_the_same_limit(kind):
    site = Wide(Limits(max_parameters=1_000_000))
    numbers = {"own": 0.0, "least": 0.0, "pooled": 0.0, "clustered": 1.0}
    content = encode_question(Question(kind, site.layout, {"primal": np.zeros(WIDE)}, numbers))
    with pytest.raises(ConfigurationError, match=r"second derivatives: \S+ numbers; .* max_parameters=1e\+06"):
        site.ask(content, "query.question")
    assert site.asked == []


@pytest.mark.parametrize("value", [0, -1, NAN, "ten", True, None])
def test_a_limit_that_is_none_is_refused(value):
    with pytest.raises(ConfigurationError, match=re.escape(f"max_steps={value!r}")):
        Limits(max_steps=value)
