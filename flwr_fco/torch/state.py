"""A model's arrays by their names in ``state_dict()``: optimised ones, passed ones, and groups of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flwr_fco.core.computing import own_turn
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError


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
        there are none all but those called ``intercept`` or ``bias``.

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
        prefix = f"the model's arrays that are not optimised are {sorted(others)}, the server's are {sorted(buffers)}"
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
