"""What comes from the other side of a wire: plans, specifications, replies, messages, bytes."""

import json
import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from fuzz.budget import NUMBERS, VALUES, WORDS, damaged, fuzzed, mutated
from hypothesis import given, note
from hypothesis import strategies as st
from problems import FEATURES, app_of, clients, simulated, start_arrays

from flwr_fco.core.layout import Layout
from flwr_fco.core.logs import quiet
from flwr_fco.core.spec import Spec, Specified
from flwr_fco.errors import FlwrFcoError, ProtocolError
from flwr_fco.messages.arrays import from_array
from flwr_fco.messages.protocol import Plan
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, Product
from flwr_fco.regularizers import L1, ElasticNet, PerParameter, Regularizer, Zero
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDAGT, FedDualAvg, FedMid, Steps
from flwr_fco.work import FirstOrder, Minimise

D = FEATURES + 1
LAYOUT = clients()[0].layout
GOOD_PLANS = [
    Plan("dual_averaging", LAYOUT, L1(0.3), Euclidean(), options={"client_prox": True}),
    Plan("mirror_descent", LAYOUT, L1(0.3, weights=np.arange(6.0)), PNorm(3.0), work=FirstOrder(steps=3)),
    Plan("dual_averaging", LAYOUT, ElasticNet(0.1), Euclidean(), scope="joint", work=Minimise(), wire_dtype="float32"),
    Plan("dual_averaging", LAYOUT, PerParameter({"coefficients": L1(0.1)}), DiagonalMetric(np.ones(D)), seed=7),
    Plan("dual_averaging", LAYOUT, Zero(), Product({"coefficients": PNorm(2.0), "*": Euclidean()})),
]
SPECS = [plan.spec for plan in GOOD_PLANS]


def is_valid(plan):
    """What every plan must be, said once more and otherwise than the package says it."""
    work = plan.work
    counts = [work.steps, work.epochs, work.batch_size] if isinstance(work, FirstOrder) else [work.max_iterations]
    return (
        isinstance(plan.solver, str)
        and type(plan.seed) is int
        and 0 <= plan.seed < 2**32
        and plan.wire_dtype in ("float64", "float32", "auto")
        and plan.scope in ("each", "joint")
        and isinstance(plan.layout, Layout)
        and all(entry.size >= 0 and all(n >= 0 for n in entry.shape) for entry in plan.layout.entries)
        and all(type(count) is int and count >= 1 for count in counts if count is not None)
        and all(isinstance(name, str) and isinstance(v, bool | int | float | str) for name, v in plan.options.items())
        and all(math.isfinite(v) for v in plan.options.values() if isinstance(v, float))
    )


@fuzzed(0.18)
@given(st.data())
def test_plans(data):
    good = data.draw(st.sampled_from(SPECS))
    header = data.draw(mutated(good.header))
    note(json.dumps(header))
    try:
        plan = Plan.from_spec(Spec(header, good.arrays))
        assert is_valid(plan)
        if plan.layout == LAYOUT:
            plan.h.require(plan.psi)
            np.asarray(plan.psi.prox(np.ones(D), 1.0))
    except FlwrFcoError:
        return
    assert Plan.from_spec(plan.spec).text == plan.text


@st.composite
def specifications(draw):
    """Draw the specification of some kind with fields of any kind."""
    family = draw(st.sampled_from(sorted(Specified._families)))
    kind = draw(st.sampled_from(sorted(Specified._families[family])))
    names = list(Specified._families[family][kind].__dataclass_fields__)
    values = {name: draw(VALUES) if draw(st.integers(0, 3)) else None for name in names}
    arrays = {}
    for name in list(values):
        if not draw(st.integers(0, 4)):
            values[name] = {"$array": name}
            arrays[name] = np.array(draw(st.lists(NUMBERS, max_size=7)), dtype=draw(st.sampled_from(["f8", "f4", "O"])))
    return Spec({"family": family, "kind": kind, **values}, arrays)


@fuzzed(0.17)
@given(specifications())
def test_specifications(spec):
    try:
        built = Specified.from_spec(spec)
        bound = built.bind(LAYOUT) if isinstance(built, Regularizer | MirrorMap) else None
        if isinstance(built, Regularizer):
            bound.prox(np.ones(D), 1.0)
    except FlwrFcoError:
        return
    assert type(built).from_spec(built.to_spec()) == built


METRICS = st.dictionaries(
    st.one_of(st.sampled_from(["num-examples", "local-steps", "elapsed", "fco-memory-lost"]), WORDS),
    st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3)),
    max_size=5,
)
ARRAY_BYTES = Array(np.linspace(-1.0, 1.0, D)).data


@st.composite
def arrays(draw):
    return Array(
        draw(st.sampled_from(["float64", "float64", "float64", "float32", "object", "", "float"])),
        draw(st.one_of(st.just((D,)), st.lists(st.integers(-2, 9), max_size=3).map(tuple))),
        draw(st.sampled_from(["numpy.ndarray", "numpy.ndarray", "numpy.ndarray", "pickle", ""])),
        draw(st.one_of(damaged(ARRAY_BYTES), st.just(ARRAY_BYTES))),
    )


def readable(metrics):
    """Flower's own records refuse lists of two types and integers beyond 64 bits."""
    try:
        return MetricRecord(metrics)
    except (TypeError, ValueError):
        return MetricRecord({"num-examples": 3})


@st.composite
def replies(draw):
    good = {"num-examples": 30, "local-steps": 5, "elapsed": 0.5}
    content = {
        "arrays": ArrayRecord(
            {
                draw(st.sampled_from(["increment", "increment", "x"])): draw(arrays())
                for _ in range(draw(st.integers(0, 2)))
            }
        ),
        "metrics": readable({**(good if draw(st.booleans()) else {}), **draw(METRICS)}),
    }
    if not draw(st.integers(0, 9)):
        content["more"] = draw(st.sampled_from([ArrayRecord(), MetricRecord({"x": 1}), ConfigRecord({"x": "y"})]))
    if not draw(st.integers(0, 9)):
        del content[draw(st.sampled_from(["arrays", "metrics"]))]
    return RecordDict(content)


@fuzzed(0.2)
@given(replies())
def test_replies(content):
    """The first node has said something else."""

    def forged(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.dst_node_id == 2:
            reply.content = content
        return reply

    strategy = FedDualAvg(client_lr=0.1, work=Steps(5), fraction_evaluate=0.0)
    with np.errstate(all="ignore"):
        result = simulated(strategy, app_of(clients(), [forged]), 1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["num-replies"] == 4 - len(result.left_out)
    assert {row.node_id for row in result.left_out} <= {2}
    assert all(len(row.reason) < 1_000 and row.reason.isprintable() for row in result.left_out)
    assert np.isfinite(strategy.state.dual).all()
    assert math.isfinite(strategy.state.elapsed)


@fuzzed(0.1)
@given(damaged(ARRAY_BYTES))
def test_headers_and_payloads_of_arrays(data):
    try:
        value = from_array("x", Array("float64", (D,), "numpy.ndarray", data))
    except ProtocolError:
        return
    # What is read is what the bytes at the end say, whatever the header looks like.
    assert value.tobytes() == data[-8 * D :]


def make_node(strategy):
    """Return a grid, and a training message that its first node would answer."""
    strategy.fraction_evaluate = 0.0
    grid = InProcessGrid(app_of(clients()), 4)
    with grid.identity(), quiet(50):
        strategy.prepare(start_arrays(), 2)
        return grid, strategy.configure_train(1, start_arrays(), ConfigRecord(), grid)[0]


NODES = [
    make_node(strategy)
    for strategy in (
        FedDualAvg(regularizer=L1(0.3), client_lr=0.02, work=Steps(3, batch_size=5)),
        FedMid(regularizer=L1(0.3), client_lr=0.02, work=Epochs(1, batch_size=5)),
        FedDAGT(regularizer=L1(0.3), client_lr=0.02, work=Epochs(1, batch_size=5)),
    )
]


def config_of(values):
    """Flower's own records refuse mixed lists, None and nested values."""
    kept = {}
    for name, value in values.items():
        try:
            ConfigRecord({name: value})
        except (TypeError, ValueError):
            continue
        kept[name] = value
    return ConfigRecord(kept)


@fuzzed(0.15)
@given(st.data())
def test_messages_to_a_client(data):
    grid, message = data.draw(st.sampled_from(NODES))
    content = message.content.copy()
    fco = dict(content["fco"])
    if data.draw(st.booleans()):
        header = data.draw(mutated(json.loads(fco["plan"])))
        note(json.dumps(header))
        fco["plan"] = json.dumps(header)
    if data.draw(st.booleans()):
        fco = data.draw(mutated(fco))
    content["fco"] = config_of(fco)
    if not data.draw(st.integers(0, 3)):
        names = [*content["arrays"], "x", "pass:x"]
        content["arrays"] = ArrayRecord({**content["arrays"], data.draw(st.sampled_from(names)): data.draw(arrays())})
    if not data.draw(st.integers(0, 3)):
        content["fco-restored"] = ArrayRecord({name: data.draw(arrays()) for name in ("own", "dual")})
    before = message.content
    message.content = content
    with grid.identity(), np.errstate(all="ignore"):
        try:
            answer = grid.client_app(message, grid.context(message.metadata.dst_node_id))
        except FlwrFcoError:
            return
        finally:
            message.content = before
    assert "metrics" in answer.content
