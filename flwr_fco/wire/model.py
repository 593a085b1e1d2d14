"""Primal models: the user's names, shapes and dtypes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from flwr_fco.core.layout import COUNTERS, Layout, Vector, euclidean_norm
from flwr_fco.errors import ProtocolError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.arrays import finite, floating, from_array, read_pass_through, vectors_of

_BLOCK = 1 << 16


def layout_of(arrays: ArrayRecord, **options: Any) -> Layout:
    """Describe the user's initial arrays (see :meth:`Layout.from_arrays`).

    FedAvg also averages the counters of batch normalisation, so they are float64 in its models and in checkpoints of
    them. Here they become whole numbers again, as clients send them.
    """
    model = {name: array.numpy() for name, array in arrays.items()}
    counters = {name: np.zeros(array.shape, np.int64) for name, array in model.items() if fnmatchcase(name, COUNTERS)}
    return Layout.from_arrays({**model, **counters}, **options)


def primal_record(
    layout: Layout, primal: Vector, pass_through: Mapping[str, NDArray[Any]] | None = None
) -> ArrayRecord:
    """Return a primal vector under the user's names, in the user's dtypes and order.

    Parameters
    ----------
    primal : ndarray of float64, shape (layout.size,)
        The model.
    pass_through : mapping of str to ndarray, optional
        The arrays that are not optimised.
    """
    arrays = {}
    for entry in layout.entries:
        if entry.optimized:
            array = primal[entry.block].astype(entry.dtype, copy=False).reshape(entry.shape)
        else:
            array = (pass_through or {})[entry.name]
        arrays[entry.name] = array
    return _flower.array_record(arrays)


def config_of_round(config: ConfigRecord, server_round: int) -> ConfigRecord:
    """Return a copy of the user's config with the round in it."""
    copied = config.copy()
    copied["server-round"] = server_round
    return copied


def primal_vector(layout: Layout, arrays: Mapping[str, Array]) -> tuple[Vector, dict[str, NDArray[Any]]]:
    """Return the flat vector and the pass-through arrays of a primal model.

    Raises
    ------
    ProtocolError
        If names, shapes or dtypes are not the layout's, or a value is NaN or infinite.
    """
    _check_names(layout, arrays)
    vector = np.empty(layout.size)
    for entry in layout.optimized:
        array = from_array(entry.name, arrays[entry.name], floating(entry.dtype), entry.shape)
        vector[entry.block] = finite(entry.name, array).reshape(-1)
    return vector, {e.name: read_pass_through(e, arrays[e.name]) for e in layout.passed_through}


def primal_increment(
    layout: Layout, arrays: Mapping[str, Array], sent: Vector
) -> tuple[NDArray[Any], dict[str, NDArray[Any]], float]:
    """Return a primal model minus the one that was sent, its pass-through arrays, and the difference's norm.

    The difference of single-precision models is also in single precision: this loses less than the models have lost
    already, and halves the size.

    Raises
    ------
    ProtocolError
        As in :func:`primal_vector`.
    """
    _check_names(layout, arrays)
    single = all(arrays[entry.name].dtype == entry.dtype == "float32" for entry in layout.optimized)
    kind = np.float32 if single else np.float64
    increment = np.empty(layout.size, kind)
    for entry in layout.optimized:
        array = from_array(entry.name, arrays[entry.name], floating(entry.dtype), entry.shape).reshape(-1)
        # In blocks that stay in the cache: casts instead of whole arrays.
        for begin in range(0, entry.size, _BLOCK):
            part = slice(entry.offset + begin, entry.offset + min(begin + _BLOCK, entry.size))
            start = sent[part].astype(kind, copy=False)
            np.subtract(array[begin : begin + _BLOCK], start, out=increment[part])
    norm = euclidean_norm(increment)
    for entry in layout.optimized if not math.isfinite(norm) else ():
        finite(entry.name, from_array(entry.name, arrays[entry.name], floating(entry.dtype), entry.shape))
        finite(entry.name, increment[entry.block], "the change of")
    return increment, {e.name: read_pass_through(e, arrays[e.name]) for e in layout.passed_through}, norm


def _check_names(layout: Layout, arrays: Mapping[str, Array]) -> None:
    if set(arrays) != set(layout.names):
        missing = sorted(set(layout.names) - set(arrays))
        extra = sorted(set(arrays) - set(layout.names))
        raise ProtocolError(f"the arrays' names differ from the model's: missing {missing}, unexpected {extra}")


def primal_request(
    arrays: ArrayRecord, config: ConfigRecord, *, arrayrecord_key: str, configrecord_key: str
) -> RecordDict:
    """Return a primal model and a config as ``FedAvg`` sends them, in new records.

    Parameters
    ----------
    arrays : ArrayRecord
        The model; its arrays are shared, the record is copied.
    config : ConfigRecord
        Copied.
    arrayrecord_key, configrecord_key : str
        The strategy's record keys.
    """
    return _flower.filled(RecordDict, {arrayrecord_key: arrays.copy(), configrecord_key: config.copy()})


def read_primal(content: RecordDict, layout: Layout) -> Vector:
    """Return the model of an evaluation message as a flat vector."""
    return primal_vector(layout, vectors_of(content))[0]
