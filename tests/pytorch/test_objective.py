"""A PyTorch model as an Objective: our own objectives, the contract, buffers, saddle points."""

from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from networks import Linear
from networks import loss as cross_entropy
from problems import flat, refused, run
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from flwr_fco.objectives import LeastSquares, MultinomialLogistic
from flwr_fco.regularizers import L1, GroupLasso, L1Ball
from flwr_fco.strategies import FedDualAvg, FedMid, Steps
from flwr_fco.testing import check_objective
from flwr_fco.torch import TorchObjective
from flwr_fco.work import FirstOrder


def _squares(model, batch):
    return ((model(batch[0]) - batch[1]) ** 2).mean()


def _pair(kind):
    """Return a network without layers, and our objective of the same problem."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(50, 6))
    kinds = (Linear(6), _squares, LeastSquares), (Linear(6, 3), cross_entropy, MultinomialLogistic)
    model, loss, ours = kinds[kind == "logistic"]
    targets = np.arange(50) % 3 if kind == "logistic" else rng.normal(size=50)
    data = torch.tensor(features), torch.tensor(targets)
    return TorchObjective(model, loss, data, apply_to="coef*", chunk_size=16), ours(features, targets)


@pytest.mark.parametrize("kind", ["least squares", "logistic"])
def test_it_has_the_values_and_gradients_of_our_objectives(kind):
    theirs, ours = _pair(kind)
    check_objective(theirs)
    theirs.take_training_loss()
    assert theirs.take_training_loss() is None
    values = [theirs.value_and_gradient(np.full(theirs.layout.size, scale))[0] for scale in (0.0, 0.5)]
    assert theirs.take_training_loss() == pytest.approx(sum(values) / 2)
    assert (theirs.layout.signature, theirs.num_examples) == (ours.layout.signature, ours.num_examples)
    w = np.random.default_rng(1).normal(size=ours.layout.size)
    assert theirs.value(w) == pytest.approx(ours.value(w), rel=1e-13)
    np.testing.assert_allclose(theirs.gradient(w), ours.gradient(w), rtol=0, atol=1e-13)
    for work, per_step in ((FirstOrder(steps=3, batch_size=7), 1), (FirstOrder(epochs=1, batch_size=20), 2)):
        own, other = (list(each.batches(np.random.default_rng(5), work, per_step)) for each in (theirs, ours))
        for batch, same in zip(own, other, strict=True):
            np.testing.assert_allclose(theirs.gradient(w, batch), ours.gradient(w, same), rtol=0, atol=1e-13)
    assert [batch.rows.size for batch in own] == [20, 20, 10, 20]


# --- networks --------------------------------------------------------------------------------------------------------


class Images(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return {"image": torch.randn(1, 6, 6, generator=generator), "label": i % 3}


def _loss(model, batch):
    return functional.cross_entropy(model(batch["image"]), batch["label"])


def _network():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)
    return nn.Sequential(*layers)


def test_a_network_of_dictionaries_with_dropout_and_batch_normalisation():
    model = _network()
    objective = TorchObjective(model, _loss, Images())
    assert objective.layout.regularized_names == ("0.weight", "5.weight")
    assert objective.layout.names == tuple(model.state_dict())
    batches = list(objective.batches(np.random.default_rng(0), FirstOrder(epochs=2, batch_size=5)))
    points = np.random.default_rng(3).normal(scale=0.1, size=(len(batches), objective.layout.size))
    before, w = torch.random.get_rng_state(), points[0]
    first = [*map(objective.gradient, points, batches)]
    assert torch.equal(torch.random.get_rng_state(), before), "PyTorch's own generator has been moved"
    torch.manual_seed(77)
    # Also of threads that have the model in common.
    with ThreadPoolExecutor(4) as threads:
        np.testing.assert_array_equal(first, [*threads.map(objective.gradient, points, batches)])
    # Dropout differs from batch to batch, also where the rows are the same.
    again = [batch._replace(rows=batches[0].rows) for batch in batches]
    assert not np.array_equal(objective.gradient(w, again[0]), objective.gradient(w, again[1]))
    # A full batch has no randomness.
    assert list(objective.batches(np.random.default_rng(0), FirstOrder(steps=2, batch_size=None))) == [None, None]
    np.testing.assert_array_equal(objective.gradient(w), objective.gradient(w))


def test_buffers_travel_and_only_training_changes_them():
    objective = TorchObjective(_network(), _loss, Images())
    names = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert (before := objective.buffers()).keys() == names
    w = np.random.default_rng(3).normal(scale=0.1, size=objective.layout.size)
    objective.metrics(w)
    assert all(np.array_equal(value, before[name]) for name, value in objective.buffers().items())
    objective.gradient(w, next(objective.batches(np.random.default_rng(0), FirstOrder(steps=1, batch_size=4))))
    after = objective.buffers()
    assert [after["1.num_batches_tracked"].dtype, after["1.num_batches_tracked"].item()] == [np.int64, 1]
    assert not np.array_equal(after["1.running_mean"], before["1.running_mean"])
    frozen = _network()
    frozen[0].weight.requires_grad_(False)
    assert names | {"0.weight"} == TorchObjective(frozen, _loss, Images()).buffers().keys()
    other = TorchObjective(_network(), _loss, Images())
    other.load_buffers(after)
    assert other.value(w) == objective.value(w)
    del after["1.running_var"]
    refused(r"the arrays \['1.running_var'\], not optimised", other.load_buffers, after)


# --- where its vectors are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedDualAvg, FedMid])
@pytest.mark.parametrize("psi", [L1(0.05), GroupLasso(0.05, groups=np.arange(6) // 2), L1Ball(1.0)])
def test_steps_on_the_device_are_those_in_numpys_memory(psi, kind):
    options = {"regularizer": psi, "client_lr": 0.05, "work": Steps(5, batch_size=7)}
    one, other = (flat(run(kind(**options), [own, own], 3).arrays) for own in _pair("least squares"))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


# --- saddle points ---------------------------------------------------------------------------------------------------


def test_a_model_against_a_shared_perturbation_is_an_operator():
    class Attacked(Linear):
        def __init__(self):
            super().__init__(6, 3)
            self.perturbation = nn.Parameter(torch.zeros(1, 6, dtype=torch.float64))

        def forward(self, x):
            return super().forward(x + self.perturbation)

    rng = np.random.default_rng(0)
    data = torch.tensor(rng.normal(size=(30, 6))), torch.tensor(rng.integers(0, 3, 30))
    saddle, plain = (TorchObjective(Attacked(), cross_entropy, data, maximize=up) for up in ("perturbation", None))
    w = rng.normal(size=saddle.layout.size)
    own, gradient = saddle.layout.views(saddle.gradient(w)), plain.layout.views(plain.gradient(w))
    np.testing.assert_array_equal(own["perturbation"], -gradient["perturbation"])
    np.testing.assert_array_equal(own["coefficients"], gradient["coefficients"])


# --- data ------------------------------------------------------------------------------------------------------------


class Centred(TensorDataset):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return Pair(x - x.mean(), y)


class Table(list):
    """As a data set of Hugging Face, which is none of PyTorch's."""

    __getitems__ = list.__getitem__


Pair = namedtuple("Pair", ["x", "y"])


def test_a_data_set_says_what_an_example_is_and_collate_what_a_batch_is():
    x, y = torch.randn(9, 2, dtype=torch.float64), torch.arange(9.0)
    centred = x - x.mean(1, keepdim=True)
    batched = {"collate": lambda rows: Pair(torch.stack([x - x.mean() for x, _ in rows]), y)}
    found = [TorchObjective(Linear(2), _squares, (centred, y)).value(np.ones(3))]
    for data, more in ((Centred(x, y), {}), (Table(map(Pair, centred, y)), {}), (TensorDataset(x, y), batched)):
        own = TorchObjective(Linear(2), lambda model, pair: _squares(model, (pair.x, pair.y)), data, **more)
        found.append(own.value(np.ones(3)))
    np.testing.assert_allclose(found, found[0], rtol=1e-15)
    # A contrast of alike examples is the logarithm of their number, and no sum.
    assert TorchObjective(Linear(2), lambda model, batch: model(batch[0]).logsumexp(0), (X, Y)).value(np.zeros(3)) > 1


X, Y = torch.ones(4, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)


OTHER_ARGUMENTS = [
    (lambda prediction: prediction, r"takes \(prediction\), and not two arguments; expected"),
    (lambda model, batch, *, weight: None, r"takes \(model, batch, \*, weight\), and not two arguments; expected"),
    (nn.ReLU(), r"takes \(input: .*, and not two arguments"),
    (nn.CrossEntropyLoss(), r"=CrossEntropyLoss\(\) takes predictions and targets"),
    (functional.mse_loss, "=<function mse_loss .* takes predictions and targets"),
]


@pytest.mark.parametrize("argument", ["loss", "scores"])
@pytest.mark.parametrize(("function", "message"), OTHER_ARGUMENTS)
def test_a_function_of_other_arguments_is_refused_with_an_example(argument, function, message):
    options = {"loss": _squares, argument: function}
    said = f"^{argument}.*{message}.*function .model, batch., such as lambda"
    refused(said, TorchObjective, Linear(2), dataset=(X, Y), **options)


@pytest.mark.parametrize("chunk_size", [7, 1024])
def test_sparse_gradients_are_those_of_a_dense_embedding(chunk_size):
    words = torch.arange(20) % 5
    data = words, words % 2
    models = (nn.Sequential(nn.Embedding(6, 3, sparse=kind), nn.Linear(3, 2)).double() for kind in (True, False))
    sparse, dense = (TorchObjective(model, cross_entropy, data, chunk_size=chunk_size) for model in models)
    w = np.random.default_rng(0).normal(size=dense.layout.size)
    batch = next(iter(dense.batches(np.random.default_rng(0), FirstOrder(steps=1, batch_size=4))))
    for rows in (None, batch):
        np.testing.assert_allclose(sparse.gradient(w, rows), dense.gradient(w, rows), rtol=1e-12, atol=1e-15)


NO_MODEL_DATA_OR_LOSS = [
    ({"dataset": []}, "dataset is a list; expected a data set"),
    ({"dataset": Dataset()}, "Dataset has no length"),
    ({"maximize": "delta"}, "maximize='delta' matches none"),
    ({"model": nn.ReLU()}, "no parameter that requires a gradient"),
    ({"model": nn.Linear(2, 1, dtype=torch.cfloat)}, r"\['weight', 'bias'\] are complex"),
    ({"model": Linear}, "model=Linear is a class; expected a Module, such as"),
    ({"dataset": X}, r"dataset is a Tensor; .* Of one tensor: \(images,\)"),
    ({"dataset": (X.numpy(), Y.numpy())}, "dataset is a tuple; .* of arrays"),
    ({"dataset": DataLoader(TensorDataset(X, Y))}, "dataset is a DataLoader; .* its dataset"),
    ({"loss": lambda model, batch: model(batch[0]) - batch[1]}, r"the loss is a tensor of shape \[4\]"),
    ({"loss": lambda model, batch: _squares(model, batch).item()}, "the loss is a float; expected a tensor"),
    ({"loss": lambda model, batch: (model(batch[0]) - 1.0).square().sum()}, "the loss is a sum over the batch"),
    ({"loss": lambda model, batch: _squares(model, batch).detach()}, "does not depend on the parameters"),
    ({"scores": lambda model, batch: {"loss": 0.0}}, r"scores returns {'loss': 0.0}; .* names other than 'loss'"),
    ({"scores": lambda model, batch: {"hits": batch[1] > 0}}, "scores returns a dict of 1 values; .* to numbers"),
]


@pytest.mark.parametrize(("changed", "message"), NO_MODEL_DATA_OR_LOSS)
def test_what_is_no_model_data_or_loss_is_named(changed, message):
    options = {"model": Linear(2), "loss": _squares, "dataset": (X, Y), **changed}
    refused(message, lambda: [getattr(TorchObjective(**options), way)(np.zeros(3)) for way in ("gradient", "metrics")])


def test_a_tied_weight_is_one_array_whose_gradient_is_the_sum_of_both():
    tied, twice = (nn.Sequential(nn.Embedding(6, 2), nn.Linear(2, 6, bias=False)).double() for _ in range(2))
    tied[1].weight = tied[0].weight
    data = torch.arange(6), torch.arange(6).flip(0)
    one, two = (TorchObjective(model, cross_entropy, data).gradient for model in (tied, twice))
    w = np.random.default_rng(0).normal(size=12)
    np.testing.assert_allclose(one(w), two(np.tile(w, 2)).reshape(2, 12).sum(0), rtol=1e-12, atol=1e-15)
