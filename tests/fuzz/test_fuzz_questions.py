"""What is asked besides training, and what is answered: by clients that lie, and by servers that do."""

import json
import math
import warnings

import numpy as np
import pytest
from adversarial_clients import in_messages
from flwr.app import Array, ArrayRecord
from fuzz.budget import NUMBERS, VALUES, fuzzed, mutated
from fuzz.test_fuzz_wire import arrays, config_of
from hypothesis import given, note
from hypothesis import strategies as st
from newton import sites
from problems import FEATURES, app_of, zeros

from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.messages.protocol import Question
from flwr_fco.messages.records import QUESTIONS, addressed, encode_question
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.regularizers import L1, ElasticNet, L2Ball
from flwr_fco.simulation import InProcessGrid
from flwr_fco.simulation.fit_path import held_out_losses, strength_max
from flwr_fco.strategies import DualFL, FedDAGT, FedDualAvg, Steps, Strengths, run_of
from flwr_fco.strategies.questions import certified, choose

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


# --- questions to a client ------------------------------------------------------------------------------------------


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
        self.good = self.answer(self.questions[0]).content["arrays"]["gradient"].numpy()

    def answer(self, content):
        with self.grid.identity(), warnings.catch_warnings(), np.errstate(all="ignore"):
            (message,) = addressed(self.grid, [(2, content)], QUESTIONS, 1)
            return self.grid.client_app(message, self.grid.context(2))


ASKED = [Asked(kind) for kind in (*KINDS, Own)]


@fuzzed(0.06)
@given(st.data())
def test_questions_to_a_client(data):
    asked = data.draw(st.sampled_from(ASKED))
    content = data.draw(st.sampled_from(asked.questions)).copy()
    fco = dict(content["fco-question"])
    if data.draw(st.booleans()):
        layout = data.draw(mutated(json.loads(fco["layout"])))
        try:
            fco["layout"] = json.dumps(layout)
        except (TypeError, ValueError):
            return
    if data.draw(st.booleans()):
        names = [name for name in fco if name.startswith("number:")] + ["number:stage", "number:common-1", "number:x"]
        fco[data.draw(st.sampled_from(names))] = data.draw(st.one_of(NUMBERS, VALUES))
    if not data.draw(st.integers(0, 3)):
        fco = data.draw(mutated(fco))
    note(str(fco))
    content["fco-question"] = config_of(fco)
    if not data.draw(st.integers(0, 2)):
        name = data.draw(st.sampled_from([*content["arrays"], "primal", "x", "pass:x"]))
        content["arrays"] = ArrayRecord({**content["arrays"], name: data.draw(arrays())})
    if not data.draw(st.integers(0, 9)):
        del content[data.draw(st.sampled_from(["arrays", "fco-question"]))]
    answer = in_words(lambda: asked.answer(content))
    assert answer is None or "metrics" in answer.content
    # The node lives, and nothing has changed in it.
    np.testing.assert_array_equal(asked.answer(asked.questions[0]).content["arrays"]["gradient"].numpy(), asked.good)


# --- answers to a server --------------------------------------------------------------------------------------------


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
        return {"most": Strengths().from_largest(strength_max(run)[0])[0], "held out": held_out_losses(run, w)[0]}

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
