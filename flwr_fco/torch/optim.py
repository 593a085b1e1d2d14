"""Composite optimisers: real ``torch.optim.Optimizer`` classes whose steps take a regularizer into account exactly."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flwr_fco.core.files import json_object
from flwr_fco.core.layout import Layout, matching
from flwr_fco.core.spec import Spec
from flwr_fco.core.validation import MOMENTUM, NON_NEGATIVE, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import NofM, PerParameter, Regularizer, Terms, Zero
from flwr_fco.regularizers.base import Groups
from flwr_fco.regularizers.kinds import noise_of

Group = dict[str, Any]
# Quoted, as in `Scores`: where the reference is built without PyTorch, its Tensor is a stand-in.
Values = Mapping[str, "Tensor | NDArray[Any]"]

#: A proximal map on tensors of one shape, dtype and device: ``(v, step) -> argmin_w step * psi(w) + 1/2 ||w - v||^2``.
TensorProx = Callable[[Tensor, float], Tensor]

#: Number of elements of a CPU tensor that are processed at a time, where possible: they stay in the cache.
_PART = 1 << 16

#: Counters of a group, reset at its start.
_CLOCK: Group = {"start_elapsed": 0.0, "used": 0.0, "steps": 0, "pull": 0.0}


class CompositeOptimizer(torch.optim.Optimizer):
    """Base class of the optimisers: where psi acts, precision, start and increments, the sum of step sizes.

    Subclasses define the step; the geometry is Euclidean. Parameter groups may differ in ``lr``, ``regularizer`` and
    ``apply_to``. The learning rate is read at every step, so the schedulers in ``torch.optim.lr_scheduler`` work, and
    :attr:`elapsed` is the sum of the learning rates used.

    Notes
    -----
    1. psi acts on the parameters with two or more dimensions if there are any, otherwise on all, but on none called
       ``bias`` or ``intercept``, as on the server. ``apply_to`` overrides this rule. A regularizer set for a group acts
       on all of the group's parameters.
    2. A parameter without a gradient (``grad is None``) has the gradient 0; psi and a shift still act on it. One
       that is frozen (``requires_grad=False``) stays as it is. What thaws later is best added then, as a group: the
       weight of psi in :class:`DualAveraging` grows meanwhile.
    3. Duals are kept in float64 whatever the dtype of the parameters, because a parameter is the small difference
       between its dual and a growing threshold. On devices without float64 they are kept in float32.
    4. Buffers (running means, counters) are not touched.

    Parameters
    ----------
    params : iterable
        Parameters, ``(name, parameter)`` pairs as from ``model.named_parameters()``, or dictionaries of options with
        one of these under ``"params"``. Patterns require names.
    lr : float, default 1e-2
        The step size.
    regularizer : Regularizer, default Zero()
        psi; :class:`~flwr_fco.regularizers.PerParameter` sets one for each layer.
    apply_to : str or sequence of str, optional
        Shell patterns (``"*.weight"``) of the names of the parameters that psi acts on.
    momentum : float, default 0.0
        Of :class:`DualAveraging` alone.

    Raises
    ------
    ConfigurationError
        If an argument is not as described. At the first step: if psi cannot act on a parameter, or a pattern in
        ``apply_to`` or ``PerParameter`` matches no parameter in the groups that use it, because a misspelt name would
        leave its parameter without a regularizer.

    Examples
    --------
    >>> import torch
    >>> optimizer = DualAveraging(torch.nn.Linear(2, 1).named_parameters(), lr=0.5, apply_to="weight")
    >>> isinstance(optimizer, CompositeOptimizer), optimizer.elapsed
    (True, 0.0)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        regularizer: Regularizer | None = None,
        *,
        apply_to: str | Sequence[str] | None = None,
        momentum: float = 0.0,
    ) -> None:
        self._proxes: dict[int, tuple[list[Any], ListedProx]] = {}
        psi = Zero() if regularizer is None else regularizer
        items = list(params)
        # As groups, because PyTorch supports names only from 2.6 on.
        groups = [{"params": items}] if items and not isinstance(items[0], dict) else items
        # A scheduler, such as OneCycleLR, changes the momentum of whoever has a default of it.
        own = {"momentum": momentum} if momentum or isinstance(self, DualAveraging) else {}
        super().__init__(groups, {"lr": lr, "regularizer": psi, "apply_to": apply_to, **own})

    # --- groups ------------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters with its own options.

        Parameters
        ----------
        param_group : dict
            ``"params"`` and any of the options ``lr``, ``regularizer``, ``apply_to``.
        """
        items = param_group["params"]
        items = [items] if isinstance(items, Tensor) else list(items)
        count = sum(len(other["params"]) for other in self.param_groups)
        pairs = [item if isinstance(item, tuple) else (str(count + i), item) for i, item in enumerate(items)]
        names = [str(name) for name, _ in pairs]
        taken = {name for other in self.param_groups for name in other["names"]} & set(names)
        if taken:
            raise ConfigurationError(f"two parameters are called {min(taken)!r}; give each a name of its own")
        kept = {"kind": type(self).__name__, "names": names, "params": [p for _, p in pairs]}
        group = {**self.defaults, **param_group, **_CLOCK, **kept}
        # A Python number, because ``weights_only`` does not load NumPy's.
        group["lr"] = checked("lr", group["lr"], float, NON_NEGATIVE)
        group["momentum"] = checked("momentum", group.get("momentum", 0.0), float, MOMENTUM)
        # A group's own regularizer acts on all its parameters, unless the group has `apply_to`.
        group["everywhere"] = "regularizer" in param_group and "apply_to" not in param_group
        _check_group(group, named=all(isinstance(item, tuple) for item in items))
        super().add_param_group(group)
        self._proxes.clear()

    @property
    def regularizers(self) -> dict[str, Regularizer | None]:
        """Regularizer of each parameter by name; None if psi does not act on it."""
        pairs = (zip(group["names"], group["params"], strict=True) for group in self.param_groups)
        rows = [(name, tuple(p.shape), "float64", True, False) for name, p in chain.from_iterable(pairs)]
        common = self.defaults["apply_to"]
        acted_on = dict[PerParameter, list[str]]()
        by_default = set(Layout.from_header(rows).applying(common).regularized_names)
        regularizers: dict[str, Regularizer | None] = {}
        for group in self.param_groups:
            psi, names, patterns = group["regularizer"], group["names"], group["apply_to"]
            own = by_default if patterns == common else matching(names, patterns or ())
            hit = set(names) if group["everywhere"] else own
            regularizers |= {name: psi.for_array(name) if name in hit else None for name in names}
            if isinstance(psi, PerParameter):
                acted_on.setdefault(psi, []).extend(name for name in names if name in hit)
        for psi, names in acted_on.items():
            psi.require_names(names, [name for name, own in regularizers.items() if own is None and name not in names])
        return regularizers

    @property
    def _filled(self) -> list[Group]:
        """The non-empty groups; PyTorch allows empty groups."""
        return [group for group in self.param_groups if group["params"]]

    # --- parts of a step ---------------------------------------------------------------------------------------------

    def _kept(self, group: Group, key: str) -> list[Tensor]:
        """Return the tensors kept for each parameter, moved to the parameter's device if the model has moved."""
        kept = [self.state[p][key].to(p.device) for p in group["params"]]
        self._keep(group, key, kept)
        return kept

    def _keep(self, group: Group, key: str, tensors: Sequence[Tensor]) -> None:
        for p, tensor in zip(group["params"], tensors, strict=True):
            self.state[p][key] = tensor

    def _points(self, group: Group) -> list[Tensor]:
        """Return copies of the parameters in the widest precision."""
        return [p.detach().to(widest_dtype(p), copy=True) for p in group["params"]]

    def _descend(self, group: Group, vectors: list[Tensor], lr: float) -> None:
        """Take a step against the gradients, or with momentum the velocities that they make: v <- v - lr g."""
        for p, vector in zip(group["params"], vectors, strict=True):
            direction = p.grad
            if group.get("momentum"):
                # As in SGD, the first gradient is the first velocity; one that is missing is 0, and the others go on.
                kept = self.state[p].get("velocity", torch.zeros_like(p)).to(p.device).mul_(group["momentum"])
                direction = self.state[p]["velocity"] = kept if direction is None else kept.add_(direction)
            if direction is not None:
                vector.add_(direction, alpha=-lr)

    def _write(self, group: Group, time: float, vectors: list[Tensor], moved: list[Tensor] | None = None) -> None:
        """Set a group's parameters to prox(vectors + moved, time); its maps are kept as long as they fit."""
        made_for = [group["regularizer"], group["apply_to"], vectors[0].dtype, *(p.device for p in group["params"])]
        kept = self._proxes.get(id(group))
        if kept is None or kept[0] != made_for:
            psi = self.regularizers
            kept = self._proxes[id(group)] = made_for, ListedProx([psi[name] for name in group["names"]], vectors)
        # What is frozen stays as it is: its point goes nowhere.
        points = [p if p.requires_grad else torch.empty_like(p) for p in group["params"]]
        kept[1].write(vectors, time, points, moved)

    @abstractmethod
    def _begin(self, group: Group, starts: list[Tensor] | None = None) -> None:
        """Keep the start of a group, by default its parameters; else set these to what belongs to the start."""

    @abstractmethod
    def _take(self, group: Group, lr: float) -> None:
        """Take a step for a group."""

    @abstractmethod
    def _moved(self, group: Group) -> list[Tensor]:
        """Return the changes since the start."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take a step along the parameters' current gradients.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients and returns the loss.

        Returns
        -------
        Any
            The closure's return value.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self._started():
            self._take(group, float(group["lr"]))
            group["steps"] += 1
        return loss

    def _started(self) -> list[Group]:
        """Return the non-empty groups, each with a start."""
        for group in self._filled:
            if "start" not in self.state[group["params"][0]]:
                self._begin(group)
        return self._filled

    # --- start, increments, time -------------------------------------------------------------------------------------

    @torch.no_grad()
    def start_from(self, vectors: Values, elapsed: float = 0.0, *, single: bool = False) -> None:
        """Restart from the given vectors; :meth:`increments` are relative to them.

        Parameters
        ----------
        vectors : mapping of str to Tensor or ndarray
            One value per parameter name, of the parameter's shape. For :class:`DualAveraging` these are duals, and the
            parameters become their primal points at time `elapsed`; for :class:`ProximalSGD` they are the parameters'
            values.
        elapsed : float, default 0.0
            The sum of earlier step sizes: the weight of psi in the map from duals to parameters.
        single : bool, default False
            Keep duals in float32. Their increments are kept by themselves, so they lose no digits to a large dual.
        """
        for group in self._filled:
            group.update(_CLOCK, start_elapsed=float(elapsed))
            self._begin(group, self._vectors(group, vectors, torch.float32 if single else None))

    @torch.no_grad()
    def increments(self) -> dict[str, Tensor]:
        """Return the changes since the start by parameter name: of the duals, or of the parameters' values."""
        return {name: moved for g in self._started() for name, moved in zip(g["names"], self._moved(g), strict=True)}

    def _vectors(self, group: Group, vectors: Values, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Return copies of vectors as tensors where the parameters are, in the widest precision by default."""
        values = []
        for name, p in zip(group["names"], group["params"], strict=True):
            vector = vectors[name]
            # np.array copies: the server's vectors are read-only, which PyTorch does not support.
            tensor = vector.detach().clone() if isinstance(vector, Tensor) else torch.from_numpy(np.array(vector))
            if tensor.shape != p.shape:  # PyTorch would spread it over the parameter
                raise ConfigurationError(f"vector {name!r} has shape {list(tensor.shape)}, expected {list(p.shape)}")
            values.append(tensor.to(device=p.device, dtype=dtype or widest_dtype(p)))
        return values

    @property
    def elapsed(self) -> float:
        """Sum of all step sizes: the initial sum plus the step sizes used."""
        return self._common("start_elapsed") + self._common("used")

    @property
    def elapsed_since_start(self) -> float:
        """Sum of the step sizes used since the start; a scheduler may have changed them from step to step."""
        return self._common("used")

    @property
    def num_steps(self) -> int:
        """Number of steps since the start."""
        return int(self._common("steps"))

    def _common(self, key: str) -> float:
        values = [float(group[key]) for group in self._filled]
        if max(values) - min(values) > 1e-9 * max(map(abs, values)):
            prefix = f"the parameter groups differ in their sums of step sizes ({values})"
            raise ConfigurationError(f"{prefix}: give all groups the same learning rate")
        return values[0]

    # --- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors, numbers and strings: ``torch.load(..., weights_only=True)`` reads it back."""
        state = super().state_dict()
        for group in state["param_groups"]:
            spec = group["regularizer"].to_spec()
            arrays = {name: torch.tensor(array) for name, array in spec.arrays.items()}
            group["regularizer"] = {"header": spec.to_json(), "arrays": arrays}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from :meth:`state_dict`; duals keep their precision."""
        saved = [dict(group) for group in state_dict["param_groups"]]
        kinds = {group.get("kind", "an optimiser of PyTorch") for group in saved}
        if kinds != {type(self).__name__}:
            raise ConfigurationError(f"the state is of {sorted(kinds)}; expected one of {type(self).__name__}")
        names, own = ([group["names"] for group in groups] for groups in (saved, self.param_groups))
        if names != own:
            raise ConfigurationError(f"the state is of the parameter groups {names}, these are {own}")
        for group in saved:
            spec = group["regularizer"]
            arrays = {name: tensor.numpy() for name, tensor in spec["arrays"].items()}
            group["regularizer"] = Regularizer.from_spec(Spec(json_object(spec["header"]), arrays))
        # PyTorch would cast the tensors to the parameters' dtypes; duals must keep theirs.
        super().load_state_dict({"state": {}, "param_groups": saved})
        for number, p in enumerate(chain.from_iterable(group["params"] for group in self.param_groups)):
            for key, value in state_dict["state"].get(number, {}).items():
                self.state[p][key] = value.to(device=p.device, copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled, copied or loaded optimiser; maps are not part of it."""
        super().__setstate__(state)
        self._proxes = {}


class DualAveraging(CompositeOptimizer):
    """Dual averaging: z <- z - lr g(w), t <- t + lr, w = prox_{t psi}(z).

    Without psi this is SGD. Parameters are exactly sparse, low-rank or feasible after every step. At the first step the
    dual is initialised to the parameters; later changes to the parameters from outside are overwritten by the next
    step.

    Parameters
    ----------
    params : iterable
        Parameters, named parameters (``model.named_parameters()``) or groups of either.
    lr : float, default 1e-2
        The step size, and the growth of psi's weight in a step.
    regularizer : Regularizer, default Zero()
        psi.
    apply_to : str or sequence of str, optional
        Shell patterns of the names of the parameters that psi acts on; by default those with two or more dimensions, or
        if there are none all, but none called ``intercept`` or ``bias``.
    momentum : float, default 0.0
        beta of heavy-ball momentum, 0 <= beta < 1: m <- beta m + g, z <- z - lr m, as in `torch.optim.SGD`. psi's
        weight grows by the total weight of the gradients in m: c <- beta c + 1, t <- t + lr c.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 3: the local steps. Momentum is an
    addition.

    Examples
    --------
    >>> import torch
    >>> from flwr_fco.regularizers import L1
    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 0.0]]))
    >>> optimizer = DualAveraging([w], lr=0.5, regularizer=L1(1.0))
    >>> loss = ((w - torch.tensor([[2.0, 0.25]])) ** 2).sum() / 2
    >>> loss.backward()
    >>> optimizer.step()
    >>> w.data, optimizer.elapsed
    (tensor([[1., 0.]]), 0.5)
    """

    def _begin(self, group: Group, starts: list[Tensor] | None = None) -> None:
        self._keep(group, "start", self._points(group) if starts is None else starts)
        self._keep(group, "moved", [torch.zeros_like(start) for start in self._kept(group, "start")])
        for p in group["params"]:
            self.state[p].pop("velocity", None)
        if starts is not None:
            self._back(group)

    def _take(self, group: Group, lr: float) -> None:
        self._descend(group, self._kept(group, "moved"), lr)
        # Most optimisers have no shift; a model has one for every parameter or for none.
        if "shift" in self.state[group["params"][0]]:
            # A scheduler, such as OneCycleLR, may have turned it on.
            _check_no_momentum(group)
            torch._foreach_add_(self._kept(group, "moved"), self._kept(group, "shift"), alpha=-lr)
        group["pull"] = group["momentum"] * group["pull"] + 1.0
        group["used"] += lr * group["pull"]
        self._back(group)

    def _moved(self, group: Group) -> list[Tensor]:
        return [moved.clone() for moved in self._kept(group, "moved")]

    def _back(self, group: Group) -> None:
        """Set the parameters to the primal points of the duals."""
        time = group["start_elapsed"] + group["used"]
        self._write(group, time, self._kept(group, "start"), self._kept(group, "moved"))

    def set_shift(self, shifts: Values) -> None:
        """Set vectors to add to every gradient, such as a tracker; without momentum only.

        Parameters
        ----------
        shifts : mapping of str to Tensor or ndarray
            One vector per parameter name.
        """
        for group in self.param_groups:
            _check_no_momentum(group)
            self._keep(group, "shift", self._vectors(group, shifts))


class ProximalSGD(CompositeOptimizer):
    """Proximal gradient descent: w <- prox_{lr psi}(w - lr g(w)).

    Parameters
    ----------
    params, lr, regularizer, apply_to
        As for :class:`DualAveraging`. The arithmetic of a step is in float64 where the device has it.
    momentum : float, default 0.0
        Only 0: with momentum a proximal step would need psi's weight to grow with it.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 2: the local steps.

    Examples
    --------
    >>> import torch
    >>> from flwr_fco.regularizers import L1
    >>> w = torch.nn.Parameter(torch.tensor([[1.0, 0.25]]))
    >>> optimizer = ProximalSGD([w], lr=0.5, regularizer=L1(1.0))
    >>> (w**2).sum().backward()
    >>> optimizer.step()
    >>> w.data
    tensor([[0., 0.]])
    """

    def _begin(self, group: Group, starts: list[Tensor] | None = None) -> None:
        if starts is not None:
            torch._foreach_copy_(group["params"], starts)
        # In the parameters' own precision, so that rounding of the start does not count as an increment.
        self._keep(group, "start", self._points(group))

    def _take(self, group: Group, lr: float) -> None:
        points = self._points(group)
        self._descend(group, points, lr)
        group["used"] += lr
        self._write(group, lr, points)

    def _moved(self, group: Group) -> list[Tensor]:
        return [end - start for end, start in zip(self._points(group), self._kept(group, "start"), strict=True)]


def _check_no_momentum(group: Group) -> None:
    if group["momentum"]:
        prefix = f"momentum={group['momentum']:g}: a tracker is added to plain gradients"
        raise ConfigurationError(f"{prefix}; take no momentum, also by no scheduler, with methods that track gradients")


def _check_group(group: Group, named: bool) -> None:
    """Raise unless a group's options are of their types, and names are there where they are needed."""
    psi, patterns = group["regularizer"], group["apply_to"]
    # Options of a group written for SGD. With momentum a proximal step would need psi's weight to grow with it.
    foreign = ["weight_decay", "momentum"] if group["kind"] == "ProximalSGD" else ["weight_decay"]
    if any(group.get(name) for name in foreign):
        advice = "a decay is a psi, regularizer=L2Squared(...) or ElasticNet(...), and DualAveraging has momentum"
        raise ConfigurationError(f"a group of {group['kind']} has no {' or '.join(foreign)}: {advice}")
    checked("regularizer", psi, Regularizer, {"example": "L1(1e-3), or another one of flwr_fco.regularizers"})
    if not named and (patterns is not None or isinstance(psi, PerParameter)):
        prefix = "PerParameter" if patterns is None else f"apply_to={patterns!r}"
        raise ConfigurationError(f"{prefix} needs names: pass model.named_parameters() instead of model.parameters()")


# --- proximal maps of tensors, from what a regularizer says of itself -------------------------------------------------
# Only the arithmetic uses PyTorch, on the tensors' device; in float64 the results agree with the NumPy maps to 1e-12. A
# psi that says neither terms, groups, singular values nor a count goes through NumPy.


def tensor_prox(regularizer: Regularizer, like: Tensor) -> TensorProx:
    """Return a regularizer's proximal map on tensors.

    Parameters
    ----------
    regularizer : Regularizer
        psi.
    like : Tensor
        A tensor with the shape, floating dtype and device of the map's inputs, so that constants are computed once.

    Returns
    -------
    callable
        ``(v, step) -> argmin_w step * psi(w) + 1/2 ||w - v||^2``, a new tensor or `v` itself.

    Raises
    ------
    ConfigurationError
        If psi cannot act on tensors of this shape.

    Examples
    --------
    >>> import torch
    >>> from flwr_fco.regularizers import L1
    >>> v = torch.tensor([3.0, -0.5, -2.0])
    >>> tensor_prox(L1(1.0), v)(v, 1.0)
    tensor([ 2.,  0., -1.])
    """
    shape = tuple(like.shape)
    regularizer.check_shape("the tensor", shape)
    if (terms := regularizer.terms()) is not None:
        return _termwise(terms, like)
    if (groups := regularizer.groups_of(shape)) is not None:
        return _grouped(groups, like)
    if (inner := regularizer.of_values()) is not None:
        return partial(_spectral, regularizer, inner)
    if isinstance(regularizer, NofM):
        return lambda v, step: torch.where(regularizer.kept(v), v, 0.0) + 0.0
    count = regularizer.count_of(like.numel())
    return partial(_through_numpy, regularizer) if count is None else partial(_sparse, count)


class ListedProx:
    """The proximal maps of a list of tensors, each with a regularizer of its own.

    Parameters
    ----------
    regularizers : sequence of Regularizer or None
        psi of each tensor; None where it does not act.
    like : list of Tensor
        Tensors with the shapes, dtype and devices of the maps' inputs.

    Raises
    ------
    ConfigurationError
        If a regularizer cannot act on a shape.
    """

    def __init__(self, regularizers: Sequence[Regularizer | None], like: list[Tensor]) -> None:
        self._maps: list[tuple[TensorProx | None, bool]] = []
        for psi, tensor in zip(regularizers, like, strict=True):
            terms = Terms() if psi is None else psi.terms()
            even = terms is not None and all(np.ndim(term) == 0 for term in terms)
            idle = terms is not None and terms.is_l1 and not np.any(terms.threshold)
            solve = None if psi is None or idle else tensor_prox(psi, tensor)
            self._maps.append((solve, even and tensor.device.type == "cpu" and tensor.numel() > _PART))

    def write(self, vectors: list[Tensor], step: float, out: list[Tensor], moved: list[Tensor] | None = None) -> None:
        """Write the maps of vectors, or of vectors + moved, to other tensors, in their dtypes.

        Parameters
        ----------
        step : float
            The weight of psi.
        """
        for i, (solve, in_parts) in enumerate(self._maps):
            given = (out[i], vectors[i]) if moved is None else (out[i], vectors[i], moved[i])
            parts: Iterable[tuple[Tensor, ...]] = [given]
            if in_parts and all(tensor.is_contiguous() for tensor in given):
                parts = zip(*(torch.split(tensor.view(-1), _PART) for tensor in given), strict=True)
            for point, vector, *change in parts:
                v = torch.add(vector, change[0]) if change else vector
                point.copy_(v if solve is None else solve(v, step))


def widest_dtype(like: Tensor) -> torch.dtype:
    """Return the most precise real dtype on a tensor's device; Apple's GPUs have no float64."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def _exact(v: Tensor) -> Tensor:
    """Return the tensor in the most precise dtype, in which long sums are accurate."""
    return v.to(widest_dtype(v))


def _constant(array: Any, like: Tensor) -> Any:
    """Return an array of a regularizer (which is read-only) as a tensor of the dtype and device of `like`."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


def _soft(v: Tensor, cut: Any) -> Tensor:
    """Return sign(v) max(|v| - cut, 0)."""
    return v - torch.clamp(v, -cut, cut)


def _termwise(terms: Terms, like: Tensor) -> TensorProx:
    """Return the map clip(soft(v, step * threshold) / (1 + step * shrinkage), lower, upper)."""
    threshold, shrinkage, lower, upper = (_constant(term, like) if np.ndim(term) else float(term) for term in terms)
    curved = bool(np.any(terms.shrinkage))
    bounded = terms.is_bounded

    def solve(v: Tensor, step: float) -> Tensor:
        # Adding 0.0 turns negative zeros into zeros, here and below.
        result = _soft(v, step * threshold).add_(0.0)
        if curved:
            result.div_(1.0 + step * shrinkage)
        # One after the other: `clamp` takes no tensor beside a number.
        return result.clamp_(min=lower).clamp_(max=upper).add_(0.0) if bounded else result

    return solve


def _grouped(given: Groups, like: Tensor) -> TensorProx:
    """Return the map w_g = u_g max(1 - step strengths_g / ||u_g||, 0) of the soft-thresholded u."""
    l1 = given[0]
    groups = torch.tensor(given[1], dtype=torch.int64, device=like.device)
    strengths = _constant(given[2], _exact(like))

    def solve(v: Tensor, step: float) -> Tensor:
        flat = _exact(_soft(v, step * l1) if l1 else v).reshape(-1)
        norms = torch.linalg.vector_norm(flat).reshape(1)
        if len(strengths) > 1:
            norms = torch.zeros_like(strengths).index_add_(0, groups, flat * flat).sqrt()
        cut = step * strengths
        # The quotient 0/0 is discarded: a group that is 0 stays 0.
        factors = torch.where(norms > cut, 1.0 - cut / norms, torch.where(norms.isnan(), norms, 0.0))
        return (flat * factors[groups] + 0.0).reshape(v.shape).to(v.dtype)

    return solve


def _spectral(psi: Regularizer, inner: Regularizer, v: Tensor, step: float) -> Tensor:
    if not v.numel():
        return v
    matrix: Any = psi.matrix(_exact(v))  # type: ignore[arg-type]
    if not bool(torch.isfinite(matrix).all()):
        return torch.full_like(v, math.nan)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    changed = tensor_prox(inner, values)(values, step)
    # Values below the rounding of a product do not count for the rank, as in the NumPy map.
    changed = torch.where(changed > noise_of(1.0, tuple(matrix.shape)) * changed.max(), changed, 0.0)
    return ((left * changed) @ right + 0.0).reshape(v.shape).to(v.dtype)


def _sparse(count: int, v: Tensor, step: float) -> Tensor:
    if count >= v.numel():
        return v + 0.0
    size = v.abs().reshape(-1)
    level = torch.topk(size, count, sorted=False).values.min()
    # NaN is kept, not hidden. Of equal ones the first stay, as in the NumPy map.
    kept = ~(size <= level)
    equal = size == level
    kept |= equal & (equal.cumsum(0) <= count - kept.sum())
    return torch.where(kept.reshape(v.shape), v, 0.0) + 0.0


def _through_numpy(psi: Regularizer, v: Tensor, step: float) -> Tensor:
    return torch.from_numpy(psi.prox(_exact(v).numpy(force=True), step)).to(v)
