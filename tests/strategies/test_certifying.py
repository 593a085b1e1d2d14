"""Certificates of a run: the federated pass is the pooled certificate, and stops a run."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from problems import Reporting
from problems import run as run_from

from flwr_fco.callbacks import EarlyStopping
from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, TraceRegression
from flwr_fco.regularizers import L1, HardSparsity
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDualAvg, Steps
from reproduction.pooled import certify, composite_objective


def objectives_of(kind, count=3):
    found = []
    for m in range(count):
        rng = np.random.default_rng(m)
        features = rng.normal(size=(10 + 4 * m, 4))
        scores = features @ [1.5, -1.0, 0.0, 0.0] + 0.5
        if kind is LeastSquares:
            found.append(LeastSquares(features, scores))
        elif kind is Logistic:
            found.append(Logistic(features, scores + 0.3 * rng.normal(size=len(scores)) > 0.0))
        elif kind is TraceRegression:
            found.append(TraceRegression(features.reshape(-1, 2, 2), scores))
        else:
            labels = np.clip(np.round(scores), 0, 2).astype(int)
            found.append(MultinomialLogistic(features, labels, num_classes=3))
    return found


def run(objectives, rounds=40, regularizer=None, callbacks=(), **options):
    given = {"client_lr": "auto", "work": Steps(1, batch_size=None), "fraction_evaluate": 0.0, **options}
    strategy = FedDualAvg(regularizer=regularizer or L1(0.1), **given)
    layout = objectives[0].layout
    return run_from(
        strategy, objectives, rounds, start=layout.unflatten(np.zeros(layout.size)), callbacks=list(callbacks)
    )


def vector(result):
    return np.concatenate([array.numpy().ravel() for array in result.arrays.values()])


@pytest.mark.parametrize("kind", [LeastSquares, Logistic, MultinomialLogistic])
def test_the_federated_pass_is_the_pooled_certificate(kind):
    objectives = objectives_of(kind)
    result = run(objectives, certificate_every=20)
    assert [n for n, m in result.train_metrics_clientapp.items() if "certificate" in m] == [20, 40]
    last = result.train_metrics_clientapp[40]
    found = certify(objectives, None, L1(0.1), vector(result))
    assert last["certificate"] == last["duality-gap"] == pytest.approx(found.value, rel=1e-9)
    assert last["objective"] == pytest.approx(composite_objective(objectives, None, L1(0.1), vector(result)))
    assert last["certificate"] < result.train_metrics_clientapp[20]["certificate"]


def test_a_certificate_ends_a_run():
    stopping = EarlyStopping(tol=1e-4, certificate="train/duality-gap")
    result = run(objectives_of(LeastSquares), rounds=2000, certificate_every=10, callbacks=[stopping])
    assert 0 < stopping.stopped < 2000
    assert result.train_metrics_clientapp[stopping.stopped]["duality-gap"] <= 1e-4


def test_where_there_is_no_gap_there_is_a_residual():
    result = run(objectives_of(LeastSquares), rounds=2, regularizer=HardSparsity(2), certificate_every=1)
    assert "residual" in result.train_metrics_clientapp[2]
    assert "duality-gap" not in result.train_metrics_clientapp[2]


class Silent(InProcessGrid):
    """Partitions that are silent when they are asked: ``silent[i]`` at the i-th question of a pass."""

    def __init__(self, objectives, silent):
        super().__init__(client_app(lambda context: objectives[context.node_config["partition-id"]]), len(objectives))
        self.silent, self.passes = silent, 0

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        if messages and messages[0].metadata.message_type == "query.question":
            quiet = self.silent[self.passes % len(self.silent)]
            self.passes += 1
            replies = [r for r in replies if self.partition_ids[r.metadata.src_node_id] not in quiet]
        return replies


def certified(objectives, silent, caplog):
    strategy = FedDualAvg(
        regularizer=L1(0.1), client_lr=0.01, work=Epochs(1, batch_size=None), fraction_evaluate=0.0, certificate_every=1
    )
    start = {name: Array(array) for name, array in objectives[0].layout.unflatten(np.zeros(5)).items()}
    result = strategy.start(Silent(objectives, silent), ArrayRecord(start), num_rounds=1)
    assert result.train_metrics_clientapp[1]["num-replies"] == 3
    return result.train_metrics_clientapp[1], vector(result), caplog.text


def test_a_certificate_is_about_the_clients_that_answer_and_says_how_many(caplog):
    objectives = objectives_of(LeastSquares)
    metrics, w, text = certified(objectives, [set(), set()], caplog)
    assert metrics["certificate-clients"] == 3
    assert "did not answer" not in text
    # Of a client that was silent at first, later answers are about data that the first ones are not about.
    for silent in ([{2}, {2}], [{2}, set()]):
        with pytest.warns(UserWarning, match="certificate of round 1 is of the data of 2 of 3 clients"):
            metrics, w, _ = certified(objectives, silent, caplog)
        assert metrics["certificate-clients"] == 2
        assert metrics["duality-gap"] == pytest.approx(certify(objectives[:2], None, L1(0.1), w).value, rel=1e-9)


@pytest.mark.parametrize(
    ("silent", "reason"),
    [([{0, 1, 2}], "no client answered"), ([set(), {1}], "1 of the 3 clients"), ([set(), {0, 1, 2}], "3 of the 3")],
)
def test_without_answers_there_is_no_certificate_and_the_run_goes_on(silent, reason, caplog):
    metrics, _, text = certified(objectives_of(LeastSquares), silent, caplog)
    assert not {"objective", "certificate", "duality-gap", "certificate-clients"} & set(metrics)
    assert "There is no certificate of this round" in text
    assert reason in text


def test_clients_that_answer_nothing_have_no_certificate():
    with pytest.raises(ConfigurationError, match="certificate_every=5"):
        FedDualAvg(client="unmodified", certificate_every=5)


def test_a_loss_that_is_computed_on_the_way_is_a_metric():
    objectives = [Reporting(f.features, f.targets) for f in objectives_of(LeastSquares)]
    result = run(objectives, rounds=10)
    losses = [metrics["loss"] for metrics in result.train_metrics_clientapp.values()]
    start = sum(f.num_examples * f.value(np.zeros(5)) for f in objectives) / sum(f.num_examples for f in objectives)
    assert losses[0] == pytest.approx(start)
    assert losses[-1] < losses[0]
    assert "loss" not in run(objectives_of(LeastSquares), rounds=1).train_metrics_clientapp[1]
