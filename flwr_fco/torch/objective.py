"""A PyTorch model and its loss as an Objective: for our ClientApp, whose local solvers do the training."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

from flwr_fco.core.computing import own_turn
from flwr_fco.core.layout import Layout, Vector, matching
from flwr_fco.core.validation import AT_LEAST_ONE, checked, of_type, short, takes
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.objectives.base import Batch, Objective, Place
from flwr_fco.regularizers.base import BoundRegularizer
from flwr_fco.torch.optim import ListedProx, widest_dtype
from flwr_fco.work import FirstOrder

Loss = Callable[[nn.Module, Any], Tensor]
Scores = Callable[[nn.Module, Any], Mapping[str, "float | Tensor"]]


class TorchBatch(NamedTuple):
    """A minibatch of a :class:`TorchObjective`.

    Parameters
    ----------
    rows : ndarray of int64
        Indices into the data set.
    seed : int
        Seed of PyTorch's random numbers (dropout, augmentation) in this step.

    Examples
    --------
    >>> TorchBatch(np.array([4, 1]), seed=7).rows
    array([4, 1])
    """

    rows: NDArray[np.int64]
    seed: int


class TorchObjective(Objective):
    """The mean loss of a PyTorch model over a data set, as a function of the flat vector of its parameters.

    Every local solver and strategy works with it, including those that need full gradients or two gradients a step,
    every regularizer and every mirror map. Local steps with the Euclidean map are taken on the model's device
    (:meth:`place`); minimisations and other maps go through NumPy. The optimisers of this package
    (:class:`DualAveraging`, :class:`ProximalSGD`) are for your own training loops.

    Notes
    -----
    1. The layout is that of ``model.state_dict()``, so ``ArrayRecord(model.state_dict())`` is a start point. What is
       optimised are the parameters that require a gradient; frozen ones and buffers pass through (:meth:`buffers`). Of
       tied weights the first name counts: delete the others from the start point.
    2. Gradients are computed in training mode and update the running statistics, as a training step does. Values and
       scores are computed in evaluation mode and change nothing. BatchNorm refuses a batch of one row, as the last of
       an epoch may be: leave one out of such data.
    3. Random numbers of the model (dropout) come from the round's generator, independently of PyTorch's own generators.
       A full batch has no randomness: its dropout masks are the same in every step. Use minibatches with dropout.

    Parameters
    ----------
    model : torch.nn.Module
        On the device where it is to be trained. Its parameters are overwritten at every call.
    loss : callable
        ``(model, batch) -> scalar``, the mean over the batch.
    dataset : torch.utils.data.Dataset, or sequence of Tensor
        The client's examples: a data set with a length, one of Hugging Face too, or tensors whose first axis counts
        examples.
    apply_to : str or sequence of str, optional
        Shell patterns of the arrays that the regularizer acts on; in a run the server's patterns apply.
    maximize : str or sequence of str, optional
        Shell patterns of the parameters that ascend: the objective is then a saddle function, and its "gradient" the
        operator (grad_x f, -grad_y f), which nobody minimises. For a perturbation that a model is trained against.
    scores : callable, optional
        ``(model, batch) -> mapping`` of further metrics of an evaluation, as means over the batch; ``"loss"`` is there.
    collate : callable, optional
        Makes a batch of a list of examples, as for a `torch.utils.data.DataLoader`.
    chunk_size : int, default 1024
        Examples that go through the model at once where all of them are asked for.

    Raises
    ------
    ConfigurationError
        If an argument is of the wrong kind, `loss` or `scores` cannot be called with a model and a batch, the data set
        is empty, or a pattern matches nothing. When it is called: if the loss is no tensor of one number, or does not
        depend on the parameters, or `scores` returns something else.

    Examples
    --------
    >>> import torch
    >>> from torch.nn import functional as F
    >>> model = torch.nn.Linear(3, 2)
    >>> data = torch.eye(3), torch.tensor([0, 1, 1])
    >>> objective = TorchObjective(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), data)
    >>> objective.layout
    Layout(weight[2, 3]*, bias[2]; size 8, * regularized)
    >>> w = np.zeros(8)
    >>> round(objective.value(w), 4), objective.gradient(w).shape
    (0.6931, (8,))
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        dataset: Dataset[Any] | Sequence[Tensor],
        *,
        apply_to: str | Sequence[str] | None = None,
        maximize: str | Sequence[str] | None = None,
        scores: Scores | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        chunk_size: int = 1024,
    ) -> None:
        self.model: nn.Module = checked("model", model, nn.Module)
        _check_takes_model_and_batch("loss", loss, "F.cross_entropy(model(batch[0]), batch[1])")
        if scores is not None:
            example = '{"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}'
            _check_takes_model_and_batch("scores", scores, example)
        self.loss = loss
        self.scores = scores
        self._collate = collate
        # `__getitems__`: a data set that a DataLoader reads too, such as one of Hugging Face.
        own = isinstance(dataset, Dataset) or hasattr(dataset, "__getitems__")
        self.dataset: Any = dataset if own else _tensors(dataset)
        self.chunk_size: int = checked("chunk_size", chunk_size, int, AT_LEAST_ONE)
        prefix = f"{type(dataset).__name__} has no length; expected a map-style data set"
        with in_words(f"{prefix}, whose examples can be counted and shuffled", ConfigurationError):
            self.num_examples = checked("len(dataset)", len(self.dataset), int, AT_LEAST_ONE)  # type: ignore[arg-type]
        named = trainable(model)
        self._parameters: list[Tensor] = list(named.values())
        self._modules = list(model.modules())
        self._losses: list[Tensor] = []
        self.layout = layout_of(model, apply_to)
        up = matching(list(named), () if maximize is None else maximize, "maximize")
        self._ascending = [self.layout[name].block for name in up]
        if up:
            self.ascends = self.layout.regularizing(up).regularized_mask()

    def value(self, w: Vector) -> float:
        """Return the mean loss over all examples, in evaluation mode."""
        return self._means(w, None)["loss"]

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the loss and the scores over all examples, in evaluation mode."""
        return self._means(w, self.scores)

    def gradient(self, w: Vector, batch: TorchBatch | None = None, out: Vector | None = None) -> Vector:
        """Return the gradient of the mean loss over a batch, in training mode; negated for parameters that ascend."""
        return self.value_and_gradient(w, batch, out)[1]

    def value_and_gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> tuple[float, Vector]:
        """Return the mean loss over a batch and its gradient, in training mode; negated for parameters that ascend."""
        found = np.empty(self.layout.size) if out is None else out
        found[:] = self._gradient(w, batch).cpu().numpy()
        return float(self._losses[-1]), found

    def add_gradient(self, w: Any, batch: TorchBatch | None, scale: float, out: Any) -> None:
        """Add scale times the gradient to `out` in place; both are arrays, or tensors of the :meth:`place`."""
        gradient = self._gradient(w, batch)
        if isinstance(out, Tensor):
            out.add_(gradient, alpha=scale)
        else:
            out += scale * gradient.cpu().numpy()

    def _gradient(self, w: Any, batch: TorchBatch | None) -> Tensor:
        """Return the gradient as a flat tensor on the model's device, and keep the loss."""
        first = self._parameters[0]
        wide = widest_dtype(first)
        total = value = torch.zeros((), dtype=wide, device=first.device)
        # In it no other thread has the model, which may be that of several clients.
        with seeded(self._parameters, 0 if batch is None else batch.seed):
            self._load(w)
            # PyTorch sets the mode module by module, which takes a tenth of a small network's step.
            if not all(module.training for module in self._modules):
                self.model.train()
            for share, examples in self._chunks(None if batch is None else batch.rows):
                loss = self._loss_of(examples)
                if not loss.requires_grad:
                    raise ConfigurationError("the loss does not depend on the parameters, or was detached from them")
                found = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
                # A sparse gradient is that of an embedding with sparse=True.
                dense = [part.to_dense() if part.is_sparse else part for part in found]
                slopes = torch.cat([part.reshape(-1).to(first.device) for part in dense]).to(wide)
                total = slopes if share == 1.0 else total + share * slopes
                own = loss.detach().to(wide)
                value = own if share == 1.0 else value + share * own
        self._losses.append(value)
        for block in self._ascending:
            total[block].neg_()
        return total

    def place(self, psi: BoundRegularizer | None) -> Place | None:
        """Return the model's device as the place of a client's steps: vectors go there once, and come back once."""
        parts = [] if psi is None else psi.parts
        first = self._parameters[0]
        wide: dict[str, Any] = {"dtype": widest_dtype(first), "device": first.device}
        if not all(isinstance(block, slice) for block, *_ in parts):
            return None
        maps = ListedProx([part for _, _, part in parts], [torch.empty(shape, **wide) for _, shape, _ in parts])

        def retrieve(z: Tensor, t: float, out: Tensor) -> None:
            if out is not z:
                out.copy_(z)
            views = [out[block].view(shape) for block, shape, _ in parts]
            maps.write(views, t, views)

        put = partial(torch.tensor, **wide)
        return Place(put, lambda vector: vector.cpu().numpy().astype(np.float64), torch.clone, retrieve)

    def take_training_loss(self) -> float | None:
        """Return the mean training-mode loss of the gradients computed since the last call; None if there were none."""
        losses, self._losses = self._losses, []
        return float(torch.stack(losses).mean()) if losses else None

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[TorchBatch | None]:
        """Yield the row numbers that any other objective yields for this generator, with a seed from a child of it."""
        (child,) = rng.spawn(1)
        batches = super().batches(rng, work, per_step)
        if work.batch_size is None:
            return batches
        # Iterating over batches runs no Python code here.
        return map(TorchBatch, batches, map(int, iter(partial(child.integers, 2**63), None)))

    def buffers(self) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays that are not optimised: running statistics, counters, frozen parameters."""
        return buffers_of(self.model)

    def load_buffers(self, buffers: Mapping[str, NDArray[Any]]) -> None:
        load_buffers(self.model, buffers)

    def _means(self, w: Vector, scores: Scores | None) -> dict[str, float]:
        means: dict[str, float] = {"loss": 0.0}
        with torch.no_grad(), seeded(self._parameters, 0):
            self._load(w)
            was_training = self.model.training
            self.model.eval()
            for share, examples in self._chunks(None):
                means["loss"] += share * float(self._loss_of(examples))
                found: Any = scores(self.model, examples) if scores else {}
                # The loss is there already: the two would be added.
                if not isinstance(found, Mapping) or "loss" in found or not all(map(_is_number, found.values())):
                    prefix = f"scores returns {short(found)}; expected a mapping of names other than 'loss' to numbers"
                    raise ConfigurationError(f"{prefix}, the means over the batch")
                for name, score in found.items():
                    means[name] = means.get(name, 0.0) + share * float(score)
            if self.chunk_size >= 6 and self._is_sum():
                raise ConfigurationError("the loss is a sum over the batch; expected the mean, as psi and rates need")
            self.model.train(was_training)
        return means

    def _is_sum(self) -> bool:
        """Whether the loss of two examples is three times as large if each is there three times, as no mean's is."""
        two = np.arange(2) % self.num_examples
        # Not every loss takes so few examples. Contrasts of alike ones are logarithms: of 4, twice that of 2.
        with suppress(Exception):
            once, thrice = (float(self._loss_of(self._examples(np.tile(two, count)))) for count in (1, 3))
            return once != 0.0 and abs(thrice / once - 3.0) < 1e-4
        return False

    def _loss_of(self, examples: Any) -> Tensor:
        loss: Any = self.loss(self.model, examples)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            prefix = f"tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigurationError(f"the loss is a {prefix}; expected a tensor of one number, the batch's mean")
        return loss

    def _load(self, w: Any) -> None:
        """Set the model's parameters, from an array or from a tensor on their device."""
        if not isinstance(w, Tensor):
            # Copy: the vector may be read-only, which PyTorch does not support.
            first = self._parameters[0]
            w = torch.from_numpy(np.array(w, dtype=np.float64)).to(device=first.device, dtype=widest_dtype(first))
        parts = torch.split(w, [p.numel() for p in self._parameters])
        with torch.no_grad():
            views = [part.view(p.shape) for p, part in zip(self._parameters, parts, strict=True)]
            torch._foreach_copy_(self._parameters, views)

    def _chunks(self, rows: NDArray[np.int64] | None) -> Iterator[tuple[float, Any]]:
        """Yield chunks of a batch on the model's device, with their shares of the batch; a minibatch is one chunk."""
        most = self.chunk_size if rows is None else rows.size
        rows = np.arange(self.num_examples) if rows is None else rows
        for start in range(0, rows.size, most):
            part = rows[start : start + most]
            yield part.size / rows.size, self._examples(part)

    def _examples(self, rows: NDArray[np.int64]) -> Any:
        # One gather instead of one for each example, where nobody has said how to make examples or a batch of them;
        # default_collate also returns a list of columns.
        if type(self.dataset) is TensorDataset and self._collate is default_collate:
            examples: Any = [*self.dataset[torch.from_numpy(rows)]]
        else:
            examples = self._collate([self.dataset[int(row)] for row in rows])
        return _to_device(examples, self._parameters[0].device)


def _is_number(score: Any) -> bool:
    return isinstance(score, SupportsFloat) and math.prod(getattr(score, "shape", ())) == 1


def _check_takes_model_and_batch(name: str, function: Any, example: str) -> None:
    """Refuse what cannot be called with (model, batch), by its signature: nothing is called, no error is caught."""
    advice = f"expected a function (model, batch), such as lambda model, batch: {example}"
    # PyTorch's own losses take two arguments too, but others.
    module = getattr(type(function) if isinstance(function, nn.Module) else function, "__module__", None)
    if module in ("torch.nn.modules.loss", "torch.nn.functional"):
        raise ConfigurationError(f"{name}={function!r} takes predictions and targets; {advice}")
    # What a module takes is what its forward takes.
    own = function.forward if isinstance(function, nn.Module) else function
    if not takes(own, 2):
        raise ConfigurationError(f"{name} takes {inspect.signature(own)}, and not two arguments; {advice}")


def _tensors(dataset: Any) -> TensorDataset:
    """Return a data set of tensors whose first axis indexes examples."""
    tensors = list(dataset) if isinstance(dataset, Sequence) else None
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.ndim for tensor in tensors):
        prefix = f"dataset is {of_type(dataset)}; expected a data set, or a list or tuple of tensors whose"
        advice = "Of one tensor: (images,); of arrays: torch.from_numpy(...); of a DataLoader: its dataset"
        raise ConfigurationError(f"{prefix} first axis counts examples, such as (images, labels). {advice}")
    return TensorDataset(*tensors)


def _to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch on a device: lists, tuples and mappings of tensors, or of what else says how it goes there."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [_to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else moved
    return batch


# --- a model's arrays by their names in ``state_dict()``: optimised ones, and those that pass -------------------------


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient by name, in the order of ``state_dict()``.

    Raises
    ------
    ConfigurationError
        If there are none, or one is complex.

    Examples
    --------
    >>> list(trainable(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))))
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    parameters: Any = {name: p for name, p in _state_of(model).items() if p.requires_grad}
    if not parameters:
        raise ConfigurationError(f"{type(model).__name__} has no parameter that requires a gradient")
    if odd := [name for name, p in parameters.items() if p.is_complex()]:
        advice = "register their torch.view_as_real, and use its torch.view_as_complex"
        raise ConfigurationError(f"the parameters {odd} are complex, and vectors are real: {advice}")
    return parameters


def _state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of ``state_dict()``; one with several names, as of tied weights, has the first of them."""
    state = model.state_dict(keep_vars=True)
    first = {id(each): name for name, each in reversed(state.items())}
    return {name: each for name, each in state.items() if first[id(each)] == name}


def layout_of(model: nn.Module, apply_to: str | Sequence[str] | None = None) -> Layout:
    """Return the layout of a model's ``state_dict()``: trainable parameters are optimised, all else passes through.

    Parameters
    ----------
    apply_to : str or sequence of str, optional
        Shell patterns of the arrays that a regularizer acts on; by default those with two or more dimensions, or if
        there are none all, but none called ``intercept`` or ``bias``.

    Examples
    --------
    >>> layout_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False, momentum=None))).names
    ('0.weight', '0.bias', '1.running_mean', '1.running_var', '1.num_batches_tracked')
    """
    parameters = trainable(model)
    state = _state_of(model).items()
    rows = [(name, tuple(each.shape), _numpy_name(each.dtype), name in parameters, False) for name, each in state]
    return Layout.from_header(rows).applying(apply_to)


def _numpy_name(dtype: torch.dtype) -> str:
    """Return NumPy's name of a dtype; float32 for dtypes that NumPy lacks."""
    name = str(dtype).removeprefix("torch.")
    return name if hasattr(np, name) or name == "bool" else "float32"


def _passing(model: nn.Module) -> dict[str, Tensor]:
    """Return the parts of the model's state that are not optimised: buffers and frozen parameters."""
    return {name: tensor for name, tensor in _state_of(model).items() if not tensor.requires_grad}


def buffers_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of the arrays that are not optimised: buffers and frozen parameters.

    Examples
    --------
    >>> sorted(buffers_of(nn.BatchNorm1d(3)))
    ['num_batches_tracked', 'running_mean', 'running_var']
    """
    named = ((name, each.cpu().to(getattr(torch, _numpy_name(each.dtype)))) for name, each in _passing(model).items())
    return {name: np.array(tensor.numpy()) for name, tensor in named}


@torch.no_grad()
def load_buffers(model: nn.Module, buffers: Mapping[str, NDArray[Any]]) -> None:
    """Set the arrays that are not optimised, in place.

    Parameters
    ----------
    buffers : mapping of str to ndarray
        All of these arrays, with the names in :func:`buffers_of`.

    Raises
    ------
    ConfigurationError
        If names are missing or unknown.
    """
    others = _passing(model)
    if others.keys() != buffers.keys():
        prefix = f"only one of model and server has the arrays {sorted(others.keys() ^ buffers.keys())}, not optimised"
        advice = "Give the strategy ArrayRecord(model.state_dict()) of the same model as initial arrays, and name in"
        raise ConfigurationError(f"{prefix}. {advice} arrays=Arrays(pass_through=...) what is frozen")
    for name, tensor in others.items():
        tensor.copy_(torch.from_numpy(np.array(buffers[name])))


@contextmanager
def seeded(parameters: Iterable[Tensor], seed: int, *, all_devices: bool = False) -> Iterator[None]:
    """Seed PyTorch's generators for a block, skipping unused devices, because seeding those costs more than a step.

    Blocks in other threads wait.

    Parameters
    ----------
    parameters : iterable of Tensor
        The model's parameters.
    seed : int
        The seed; after the block the generators go on as before it.
    all_devices : bool, default False
        Whether to include available devices that are not in use yet.
    """
    devices = {p.device.index or 0 for p in parameters if p.device.type == "cuda"}
    with own_turn(), torch.random.fork_rng(devices=sorted(devices)):
        used = torch.cuda.is_initialized() or torch.backends.mps.is_available()  # type: ignore[no-untyped-call]
        everywhere = used or (all_devices and torch.cuda.is_available())
        (torch if everywhere else torch.default_generator).manual_seed(seed)
        yield
