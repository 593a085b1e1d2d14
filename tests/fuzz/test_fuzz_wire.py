"""What comes from the other side of a wire: plans, specifications, replies, messages, bytes, questions and answers."""

import json
import math
import warnings
from contextlib import suppress

import numpy as np
import pytest
from adversarial_clients import in_messages
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from fuzz.budget import NUMBERS, VALUES, WORDS, damaged, fuzzed, mutated
from hypothesis import given, note
from hypothesis import strategies as st
from newton import sites
from problems import FEATURES, D, answered, app_of, clients, first_message, simulated, zeros

from flwr_fco.core.computing import quiet
from flwr_fco.core.layout import Layout
from flwr_fco.core.spec import Spec, Specified
from flwr_fco.errors import ConfigurationError, FlwrFcoError, ProtocolError
from flwr_fco.messages.protocol import Plan, Question
from flwr_fco.messages.records import QUESTIONS, encode_question, from_array
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, Product
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.regularizers import L1, ElasticNet, L2Ball, PerParameter, Regularizer, Zero
from flwr_fco.simulation import InProcessGrid
from flwr_fco.simulation.fit_path import held_out_losses, strength_max
from flwr_fco.strategies import DualFL, Epochs, FedDAGT, FedDualAvg, FedMid, Steps, Strengths, run_of
from flwr_fco.strategies.questions import certified, choose
from flwr_fco.work import FirstOrder, Minimise

LAYOUT = clients()[0].layout
GOOD_PLANS = [
    Plan("dual_averaging", LAYOUT, L1(0.3), Euclidean(), options={"client_prox": True}),
    Plan("mirror_descent", LAYOUT, L1(0.3, weights=np.arange(6.0)), PNorm(3.0), work=FirstOrder(steps=3)),
    Plan("dual_averaging", LAYOUT, ElasticNet(0.1), Euclidean(), scope="joint", work=Minimise(), wire_dtype="float32"),
    Plan("dual_averaging", LAYOUT, PerParameter({"coefficients": L1(0.1)}), DiagonalMetric(np.ones(D)), seed=7),
    Plan("dual_averaging", LAYOUT, Zero(), Product({"coefficients": PNorm(2.0), "*": DiagonalMetric(np.ones(1))})),
]
SPECS = [plan.spec for plan in GOOD_PLANS]


def read_again(function):
    """Return what a function returns; what was good once may not be refused now."""
    try:
        return function()
    except FlwrFcoError as error:
        pytest.fail(f"{error}")


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
    with suppress(FlwrFcoError):
        plan = Plan.from_spec(Spec(header, good.arrays))
        assert is_valid(plan)
        if plan.layout == LAYOUT:
            plan.h.require(plan.psi)
            np.asarray(plan.psi.prox(np.ones(D), 1.0))
        assert read_again(lambda: Plan.from_spec(plan.spec).text == plan.text)


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
    with suppress(FlwrFcoError):
        built = Specified.from_spec(spec)
        bound = built.bind(LAYOUT) if isinstance(built, Regularizer | MirrorMap) else None
        if isinstance(built, Regularizer):
            bound.prox(np.ones(D), 1.0)
        assert read_again(lambda: type(built).from_spec(built.to_spec()) == built)


def with_another(draw, record, *names):
    """Return arrays of which one, or one more of these names, is another."""
    return ArrayRecord({**record, draw(st.sampled_from([*record, *names])): draw(arrays())})


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


def record_of(kind, values):
    """Flower's own records refuse mixed lists, None, nested values and integers beyond 64 bits."""
    record = kind()
    for name, value in values.items():
        with suppress(TypeError, ValueError):
            record[name] = value
    return record


@st.composite
def replies(draw):
    good = {"num-examples": 30, "local-steps": 5, "elapsed": 0.5}
    names = draw(st.lists(st.sampled_from(["increment", "increment", "x"]), max_size=2))
    content = {
        "arrays": ArrayRecord({name: draw(arrays()) for name in names}),
        "metrics": record_of(MetricRecord, {**(good if draw(st.booleans()) else {}), **draw(METRICS)}),
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
    assert result.train_metrics_clientapp[1]["num-replies"] == 4 - len(result.left_out)
    assert {row.node_id for row in result.left_out} <= {2}
    assert all(len(row.reason) < 1_000 and row.reason.isprintable() for row in result.left_out)
    assert np.isfinite(strategy.state.dual).all()
    assert math.isfinite(strategy.state.elapsed)


@fuzzed(0.1)
@given(damaged(ARRAY_BYTES))
def test_headers_and_payloads_of_arrays(data):
    with suppress(ProtocolError):
        value = from_array("x", Array("float64", (D,), "numpy.ndarray", data))
        # What is read is what the bytes at the end say, whatever the header looks like.
        assert value.tobytes() == data[-8 * D :]


SMALL = {"regularizer": L1(0.3), "client_lr": 0.02}
GRID = InProcessGrid(app_of(clients()), 4)
CONTENTS = [
    first_message(strategy, GRID).content
    for strategy in (
        FedDualAvg(work=Steps(3, batch_size=5), **SMALL),
        FedMid(work=Epochs(1, batch_size=5), **SMALL),
        FedDAGT(work=Epochs(1, batch_size=5), **SMALL),
    )
]


@fuzzed(0.15)
@given(st.data())
def test_messages_to_a_client(data):
    content = data.draw(st.sampled_from(CONTENTS)).copy()
    fco = dict(content["fco"])
    if data.draw(st.booleans()):
        header = data.draw(mutated(json.loads(fco["plan"])))
        note(json.dumps(header))
        fco["plan"] = json.dumps(header)
    if data.draw(st.booleans()):
        fco = data.draw(mutated(fco))
    content["fco"] = record_of(ConfigRecord, fco)
    if not data.draw(st.integers(0, 3)):
        content["arrays"] = with_another(data.draw, content["arrays"], "x", "pass:x")
    if not data.draw(st.integers(0, 3)):
        content["fco-restored"] = ArrayRecord({name: data.draw(arrays()) for name in ("own", "dual")})
    with np.errstate(all="ignore"), suppress(FlwrFcoError):
        assert "metrics" in answered(GRID, content).content


# --- what is asked besides training: by servers that lie, and answered by clients that do -----------------------------

CLIENTS = 6
KINDS = (LeastSquares, Logistic, MultinomialLogistic)


class Own(LeastSquares):
    """A user's loss, of which the package knows no smoothness."""

    def lipschitz(self, norm="l2"):
        raise ConfigurationError("unknown")


def objectives_of(kind, count=CLIENTS):
    name = {MultinomialLogistic: "multinomial", Logistic: "logistic"}.get(kind, "squares")
    found = sites(name, sizes=range(8, 8 + count), p=FEATURES)
    return [Own(own.features, own.targets) for own in found] if kind is Own else found


def in_words(function):
    """Return what a function returns, or None where it says in words why it does not."""
    try:
        return function()
    except FlwrFcoError as error:
        text = str(error)
    assert len(text) < 2_000
    return None


class Asked:
    """A client, and what it is asked: every kind of question and each of its stages."""

    def __init__(self, kind):
        self.objective = objectives_of(kind, 1)[0]
        self.grid = InProcessGrid(app_of([self.objective]), 1)
        layout = self.objective.layout
        vectors = {"primal": np.linspace(-1.0, 1.0, layout.size)}
        shares = {"references": 1.0, **{f"share-{k}": 0.25 for k in range(4)}}
        asked = [("gradient", {}), ("validation", {}), ("smoothness", {"batch-size": 4.0})]
        asked += [("duality", {"references": 1.0}), ("duality", shares)]
        self.questions = [encode_question(Question(name, layout, vectors, given)) for name, given in asked]
        self.good = self.gradient()

    def answer(self, content):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            return answered(self.grid, content, QUESTIONS)

    def gradient(self):
        return self.answer(self.questions[0]).content["arrays"]["gradient"]


ASKED = [Asked(kind) for kind in (*KINDS, Own)]


@fuzzed(0.06)
@given(st.data())
def test_questions_to_a_client(data):
    asked = data.draw(st.sampled_from(ASKED))
    content = data.draw(st.sampled_from(asked.questions)).copy()
    fco = dict(content["fco-question"])
    if data.draw(st.booleans()):
        fco["layout"] = json.dumps(data.draw(mutated(json.loads(fco["layout"]))))
    if data.draw(st.booleans()):
        names = [name for name in fco if name.startswith("number:")] + ["number:stage", "number:common-1", "number:x"]
        fco[data.draw(st.sampled_from(names))] = data.draw(st.one_of(NUMBERS, VALUES))
    if not data.draw(st.integers(0, 3)):
        fco = data.draw(mutated(fco))
    note(str(fco))
    content["fco-question"] = record_of(ConfigRecord, fco)
    if not data.draw(st.integers(0, 2)):
        content["arrays"] = with_another(data.draw, content["arrays"], "primal", "x", "pass:x")
    if not data.draw(st.integers(0, 9)):
        del content[data.draw(st.sampled_from(["arrays", "fco-question"]))]
    answer = in_words(lambda: asked.answer(content))
    assert answer is None or "metrics" in answer.content
    # The node lives, and nothing has changed in it.
    assert asked.gradient() == asked.good


@st.composite
def lies(draw):
    """Draw what a client makes of an answer: another number, other arrays, or something else altogether."""
    kind = draw(st.sampled_from(["number", "number", "number", "scaled", "arrays", "more", "less", "raises"]))
    which = draw(st.integers(0, 30))
    value = draw(NUMBERS)
    factor = draw(st.sampled_from([-1.0, 0.0, 1e-300, 1e-12, 900.0, -1e3, 1e12, 1e150, 1e300]))
    bytes_of = draw(st.binary(max_size=40))
    note(f"{kind} {which} {value} {factor} {bytes_of}")

    def lie(number, vectors, claims):
        name = sorted(claims)[which % len(claims)]
        if kind == "number":
            claims[name] = value
        elif kind == "scaled":
            with np.errstate(all="ignore"):
                vectors.update({key: np.asarray(factor * vector) for key, vector in vectors.items()})
            claims.update({key: factor * claim for key, claim in claims.items() if key != "num-examples"})
        elif kind == "arrays":
            forged = {key: Array(own.dtype.name, own.shape, "numpy.ndarray", bytes_of) for key, own in vectors.items()}
            vectors.update(forged)
        elif kind == "more":
            claims["x"] = [value, 1]
        elif kind == "less":
            del claims[name]
        else:
            raise RuntimeError("it has nothing to say")

    return lie


def with_liars(data, objectives, *kinds):
    """Return a grid with some clients that lie in messages of these kinds."""
    lie = data.draw(lies())
    liars = data.draw(LIARS)
    mods = [in_messages(lie, liar, kind) for liar in liars for kind in kinds]
    return InProcessGrid(app_of(objectives, mods), len(objectives), raise_errors=False)


LIARS = st.sampled_from([{1}, {0, 3}, {0, 1, 2}, set(range(CLIENTS))])
DATA = {kind: objectives_of(kind) for kind in (*KINDS, Own)}
PSIS = (L1(0.1), ElasticNet(0.1, 0.5), L2Ball(1.0))


def certificate(data, objectives):
    psi = data.draw(st.sampled_from(PSIS))
    w = np.linspace(-0.3, 0.3, objectives[0].layout.size)
    return FedDualAvg(regularizer=psi, client_lr=0.01, certificate_every=1), lambda run: certified(run, w)


def rate(data, objectives):
    kinds = [FedDualAvg(client_lr="auto", work=Steps(3, batch_size=4)), FedDAGT(client_lr="auto", work=Steps(3))]
    kinds += [DualFL(nu="auto", rho="auto")] if objectives[0].smooth else []
    strategy = data.draw(st.sampled_from(kinds))
    return strategy, lambda run: choose(run, [name for name in run.rates if getattr(strategy, name) == "auto"])


def strength(data, objectives):
    strategy = FedDualAvg(regularizer=data.draw(st.sampled_from(PSIS[:2])), client_lr=0.01)
    w = np.zeros(objectives[0].layout.size)

    def about(run):
        losses = held_out_losses(run, w, {}).values()
        return {"most": Strengths().from_largest(strength_max(run)[0])[0], "held out": max(losses)[1]}

    return strategy, about


@pytest.mark.parametrize("ask", [certificate, rate, strength])
@fuzzed(0.04)
@given(st.data())
def test_what_is_made_of_answers_is_finite_or_an_error_in_words(ask, data):
    objectives = DATA[data.draw(st.sampled_from([*KINDS, Own]))]
    strategy, question = ask(data, objectives)
    strategy.fraction_evaluate = 0.0
    grid = with_liars(data, objectives, QUESTIONS)
    with grid.identity(), quiet(50), np.errstate(all="ignore"), warnings.catch_warnings():
        strategy.prepare(zeros(objectives[0].layout), 3)
        run_of(strategy).grid = grid
        found = in_words(lambda: question(run_of(strategy))) or {}
    assert all(math.isfinite(value) for value in found.values())
    assert all(found[name] >= 0.0 for name in ("certificate", "client_lr", "nu", "rho") if name in found)


@fuzzed(0.03)
@given(st.data())
def test_a_run_goes_on_whatever_is_answered(data):
    objectives = DATA[data.draw(st.sampled_from(KINDS))]
    options = {"work": Steps(2, batch_size=None), "certificate_every": 1, "min_evaluate_nodes": 1}
    strategy = FedDualAvg(regularizer=L1(0.1), client_lr=0.01, **options)
    grid = with_liars(data, objectives, QUESTIONS, "evaluate")
    with grid.identity(), quiet(50), np.errstate(all="ignore"):
        result = strategy.start(grid, zeros(objectives[0].layout), 2)
    # The training is not theirs to end, nor to change.
    assert strategy.state.round == 2
    assert all(metrics["num-replies"] == CLIENTS for metrics in result.train_metrics_clientapp.values())
