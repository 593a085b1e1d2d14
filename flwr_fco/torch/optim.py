"""Composite optimisers: real ``torch.optim.Optimizer`` classes whose steps take a regularizer into account exactly."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flwr_fco.core.files import json_object
from flwr_fco.core.spec import Spec
from flwr_fco.core.validation import MOMENTUM, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import PerParameter, Regularizer, Zero
from flwr_fco.torch import state as model_state
from flwr_fco.torch.regularizers import ListedProx, widest_dtype
from flwr_fco.torch.state import Group, Parameters

# Quoted, as in `Scores`: where the reference is built without PyTorch, its Tensor is a stand-in.
Values = Mapping[str, "Tensor | NDArray[Any]"]

#: Counters of a group, reset at its start.
_CLOCK: Group = {"start_elapsed": 0.0, "used": 0.0, "steps": 0, "pull": 0.0}


class CompositeOptimizer(torch.optim.Optimizer):
    """Base class of the optimisers: where psi acts, precision, start and increments, the sum of step sizes.

    Subclasses define the step; the geometry is Euclidean. Parameter groups may differ in ``lr``, ``regularizer`` and
    ``apply_to``. The learning rate is read at every step, so the schedulers in ``torch.optim.lr_scheduler`` work, and
    :attr:`elapsed` is the sum of the learning rates used.

    Notes
    -----
    1. psi acts on the parameters with two or more dimensions if there are any, otherwise on all except those called
       ``bias`` or ``intercept``, as on the server. ``apply_to`` overrides this rule. A regularizer set for a group acts
       on all of the group's parameters.
    2. A parameter without a gradient (``grad is None``) has the gradient 0; psi and a shift still act on it. Leave
       parameters that must not change out of the optimiser.
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

    Raises
    ------
    ConfigurationError
        If an argument is not as described. At the first step: if a regularizer has no map on tensors, or a pattern in
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
        params: Parameters,
        lr: float = 1e-2,
        regularizer: Regularizer | None = None,
        *,
        apply_to: str | Sequence[str] | None = None,
    ) -> None:
        self._proxes: dict[int, tuple[list[torch.device], ListedProx]] = {}
        psi = Zero() if regularizer is None else regularizer
        defaults = {"lr": model_state.plain(lr), "regularizer": psi, "apply_to": apply_to}
        super().__init__(model_state.as_groups(params), defaults)
        if not self._filled:
            raise ConfigurationError("no group has any parameters; expected some, such as model.named_parameters()")

    # --- groups ------------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters with its own options.

        Parameters
        ----------
        param_group : dict
            ``"params"`` and any of the options ``lr``, ``regularizer``, ``apply_to``.
        """
        group = dict(param_group)
        if "lr" in group:
            group["lr"] = model_state.plain(group["lr"])
        items = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        count = sum(len(other["params"]) for other in self.param_groups)
        group["named"] = all(isinstance(item, tuple) for item in items)
        group["names"] = [str(item[0]) if isinstance(item, tuple) else str(count + i) for i, item in enumerate(items)]
        group["params"] = [item[1] if isinstance(item, tuple) else item for item in items]
        # A group's own regularizer acts on all its parameters, unless the group has `apply_to`.
        group["everywhere"] = "regularizer" in group and "apply_to" not in group
        group.update(_CLOCK)
        taken = {name for other in self.param_groups for name in other["names"]} & set(group["names"])
        if taken:
            raise ConfigurationError(f"two parameters are called {min(taken)!r}; give each a name of its own")
        model_state.check_group({**self.defaults, **group})
        super().add_param_group(group)
        self._proxes.clear()

    @property
    def regularizers(self) -> dict[str, Regularizer | None]:
        """Regularizer of each parameter by name; None if psi does not act on it."""
        pairs = [pair for group in self.param_groups for pair in zip(group["names"], group["params"], strict=True)]
        shapes = {name: tuple(p.shape) for name, p in pairs}
        by_default, common = model_state.regularized_names(shapes), self.defaults["apply_to"]
        if common is not None:
            model_state.matching(shapes, common)
        regularizers: dict[str, Regularizer | None] = {}
        acted_on: dict[PerParameter, list[str]] = {}
        for group in self.param_groups:
            psi, names, patterns = group["regularizer"], group["names"], group["apply_to"]
            if group["everywhere"]:
                hit = set(names)
            elif patterns is None:
                hit = by_default
            elif patterns != common:
                hit = model_state.matching(names, patterns)
            else:
                hit = {name for name in names if any(fnmatchcase(name, x) for x in model_state.patterns_of(patterns))}
            regularizers |= {name: psi.for_array(name) if name in hit else None for name in names}
            if isinstance(psi, PerParameter):
                acted_on.setdefault(psi, []).extend(name for name in names if name in hit)
        for psi, names in acted_on.items():
            psi.require_names(names, [name for name in shapes if regularizers[name] is None and name not in names])
        return regularizers

    @property
    def _filled(self) -> list[Group]:
        """The non-empty groups; PyTorch allows empty groups."""
        return [group for group in self.param_groups if group["params"]]

    def _write(self, group: Group, duals: list[Tensor], time: float, starts: list[Tensor] | None = None) -> None:
        """Set a group's parameters to prox(duals, time); the maps are built anew when a device changes."""
        devices = [p.device for p in group["params"]]
        kept = self._proxes.get(id(group))
        if kept is None or kept[0] != devices:
            psi, like = self.regularizers, [torch.empty_like(p, dtype=self._dtype(p)) for p in group["params"]]
            kept = self._proxes[id(group)] = devices, ListedProx([psi[name] for name in group["names"]], like)
        kept[1].write(duals, time, group["params"], starts)

    def _dtype(self, p: Tensor) -> torch.dtype:
        return widest_dtype(p)

    # --- parts of a step ---------------------------------------------------------------------------------------------

    def _kept(self, group: Group, key: str) -> list[Tensor]:
        """Return the tensors kept for each parameter, moved to the parameter's device if the model has moved."""
        tensors = []
        for p in group["params"]:
            tensor = self.state[p][key]
            if tensor.device != p.device:
                tensor = self.state[p][key] = tensor.to(p.device)
            tensors.append(tensor)
        return tensors

    def _keep(self, group: Group, key: str, tensors: Sequence[Tensor]) -> None:
        for p, tensor in zip(group["params"], tensors, strict=True):
            self.state[p][key] = tensor

    def _points(self, group: Group) -> list[Tensor]:
        """Return copies of the parameters in the precision of the duals."""
        return [p.detach().to(self._dtype(p), copy=True) for p in group["params"]]

    def _descend(self, group: Group, duals: list[Tensor], lr: float) -> None:
        """Take a step against the gradients and the shifts: z <- z - lr (g + shift)."""
        having = [(dual, p.grad) for p, dual in zip(group["params"], duals, strict=True) if p.grad is not None]
        if any(gradient.is_sparse for _, gradient in having):
            what = f"{type(self).__name__} takes no sparse gradients"
            raise ConfigurationError(f"{what}; make the embedding with sparse=False")
        _add([dual for dual, _ in having], self._directions(group, [gradient for _, gradient in having]), -lr)
        # PyTorch hashes parameters in Python, so avoid one look-up per parameter: most optimisers have no shift.
        if any("shift" in values for values in self.state.values()):
            shifted = [i for i, p in enumerate(group["params"]) if "shift" in self.state[p]]
            shifts = self._kept({"params": [group["params"][i] for i in shifted]}, "shift")
            _add([duals[i] for i in shifted], shifts, -lr)

    def _directions(self, group: Group, gradients: list[Tensor]) -> list[Tensor]:
        """Return the directions that a step follows instead of the gradients."""
        return gradients

    def _count(self, group: Group, lr: float) -> None:
        """Count a step."""
        group["used"] += lr
        group["steps"] += 1

    @abstractmethod
    def _take(self, group: Group, lr: float) -> None:
        """Take a step for a group."""

    @abstractmethod
    def _put(self, group: Group, values: list[Tensor]) -> None:
        """Set the optimiser's state to the given values, and the parameters accordingly."""

    @abstractmethod
    def _ends(self, group: Group) -> list[Tensor]:
        """Return the state whose changes :meth:`increments` returns."""

    def _begin(self, group: Group) -> None:
        """Store the start of a group if it has not started yet."""
        if "start" not in self.state[group["params"][0]]:
            self._keep(group, "start", [end.clone() for end in self._ends(group)])

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
        for group in self._filled:
            self._begin(group)
            self._take(group, float(group["lr"]))
        return loss

    # --- start, increments, time -------------------------------------------------------------------------------------

    @torch.no_grad()
    def start_from(self, vectors: Values, elapsed: float = 0.0) -> None:
        """Restart from the given vectors; :meth:`increments` are relative to them.

        Parameters
        ----------
        vectors : mapping of str to Tensor or ndarray
            One value per parameter name, of the parameter's shape. For :class:`DualAveraging` these are duals, and the
            parameters become their primal points at time `elapsed`; for :class:`ProximalSGD` they are the parameters'
            values.
        elapsed : float, default 0.0
            The sum of earlier step sizes: the weight of psi in the map from duals to parameters.
        """
        for group in self._filled:
            values = self._start_values(group, vectors)
            group.update(_CLOCK, start_elapsed=float(elapsed))
            for p in group["params"]:
                self.state[p].pop("velocity", None)
            self._put(group, values)
            # In the parameters' own precision, so that rounding of the start does not count as an increment.
            self._keep(group, "start", [end.clone() for end in self._ends(group)])

    @torch.no_grad()
    def increments(self) -> dict[str, Tensor]:
        """Return the changes since the start by parameter name: of the duals, or of the parameters' values."""
        increments = {}
        for group in self._filled:
            self._begin(group)
            for name, end, start in zip(group["names"], self._ends(group), self._kept(group, "start"), strict=True):
                increments[name] = end - start
        return increments

    def _start_values(self, group: Group, vectors: Values) -> list[Tensor]:
        values = []
        for name, p in zip(group["names"], group["params"], strict=True):
            if name not in vectors:
                raise ConfigurationError(f"there is no vector for the parameter {name!r}; got {sorted(vectors)}")
            vector = vectors[name]
            # np.array copies: the server's vectors are read-only, which PyTorch does not support.
            tensor = vector.detach() if isinstance(vector, Tensor) else torch.from_numpy(np.array(vector))
            if tensor.shape != p.shape:
                what = f"the vector for the parameter {name!r} has shape {list(tensor.shape)}"
                raise ConfigurationError(f"{what}, expected {list(p.shape)}")
            values.append(tensor.to(device=p.device, dtype=self._dtype(p), copy=True))
        return values

    def set_shift(self, shifts: Values) -> None:
        """Set vectors to add to every gradient, such as a tracker.

        Parameters
        ----------
        shifts : mapping of str to Tensor or ndarray
            One vector per parameter name.
        """
        for group in self.param_groups:
            # Those that do not fit leave the earlier ones.
            self._keep(group, "shift", self._start_values(group, shifts))

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
            raise ConfigurationError(
                f"the parameter groups differ in their sums of step sizes ({values}): one number cannot say what they "
                "have done. Give all groups the same learning rate"
            )
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
        names, own = ([group["names"] for group in groups] for groups in (saved, self.param_groups))
        if names != own:
            raise ConfigurationError(f"the state is of the parameter groups {names}, these are {own}")
        for group in saved:
            spec = group["regularizer"]
            arrays = {name: tensor.numpy() for name, tensor in spec["arrays"].items()}
            group["regularizer"] = Regularizer.from_spec(Spec(json_object(spec["header"]), arrays))
        super().load_state_dict({**state_dict, "param_groups": saved})
        # PyTorch casts the loaded tensors to the parameters' dtypes; duals must keep theirs.
        ids = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, p in zip(ids, parameters, strict=True):
            for key, value in state_dict["state"].get(number, {}).items():
                self.state[p][key] = value.to(device=p.device, copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimiser."""
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
        Shell patterns of the names of the parameters that psi acts on; by default those with two or more dimensions.
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

    def __init__(self, params: Parameters, lr: float = 1e-2, *arguments: Any, momentum: float = 0.0, **options: Any):
        checked("momentum", momentum, float, MOMENTUM)
        super().__init__(params, lr, *arguments, **options)
        for group in (self.defaults, *self.param_groups):
            group.setdefault("momentum", float(momentum))

    def _begin(self, group: Group) -> None:
        if "dual" not in self.state[group["params"][0]]:
            self._keep(group, "dual", self._points(group))
        super()._begin(group)

    def _ends(self, group: Group) -> list[Tensor]:
        return self._kept(group, "dual")

    def _take(self, group: Group, lr: float) -> None:
        self._descend(group, self._ends(group), lr)
        self._count(group, lr)
        self._back(group)

    def _put(self, group: Group, values: list[Tensor]) -> None:
        self._keep(group, "dual", values)
        self._back(group)

    def _back(self, group: Group) -> None:
        """Set the parameters to the primal points of the duals."""
        self._write(group, self._ends(group), group["start_elapsed"] + group["used"])

    def _directions(self, group: Group, gradients: list[Tensor]) -> list[Tensor]:
        beta = group["momentum"]
        if not beta:
            return gradients
        velocities = []
        for p in group["params"]:
            if p.grad is not None:
                velocity = self.state[p].get("velocity")
                # As in SGD, the first gradient is the first velocity.
                new = p.grad.clone() if velocity is None else velocity.to(p.device).mul_(beta).add_(p.grad)
                velocities.append(new)
                self.state[p]["velocity"] = new
        return velocities

    def _count(self, group: Group, lr: float) -> None:
        group["pull"] = group["momentum"] * group["pull"] + 1.0
        super()._count(group, lr * group["pull"])

    def set_shift(self, shifts: Values) -> None:
        """Set vectors to add to every gradient, without momentum only; see :meth:`CompositeOptimizer.set_shift`."""
        if any(group["momentum"] for group in self.param_groups):
            what = "momentum: a tracker is added to plain gradients"
            raise ConfigurationError(f"{what}; take no momentum with methods that track gradients")
        super().set_shift(shifts)


class IncrementFirst(DualAveraging):
    """Dual averaging from a float32 dual that stores the increments separately, so that rounding does not lose digits.

    The increments take as much memory as one float32 model, whereas a float64 dual and its start take four. The start
    is not copied if it can be read in place.
    """

    @torch.no_grad()
    def start_from(self, vectors: Values, elapsed: float = 0.0) -> None:
        """Restart from the given duals, without copying them if possible."""
        for group in self._filled:
            group.update(_CLOCK, start_elapsed=float(elapsed))
            with warnings.catch_warnings():
                # The read-only arrays are never written to.
                warnings.filterwarnings("ignore", "The given NumPy array is not writ")
                starts = [torch.as_tensor(vectors[name]) for name in group["names"]]
            pairs = list(zip(group["params"], starts, strict=True))
            self._keep(group, "start", [start.to(device=p.device, dtype=torch.float32) for p, start in pairs])
            self._put(group, [torch.zeros(p.shape, dtype=torch.float32, device=p.device) for p in group["params"]])

    def _dtype(self, p: Tensor) -> torch.dtype:
        return torch.float32

    def _back(self, group: Group) -> None:
        time = group["start_elapsed"] + group["used"]
        self._write(group, self._ends(group), time, self._kept(group, "start"))

    @torch.no_grad()
    def increments(self) -> dict[str, Tensor]:
        """Return the increments since the start by parameter name (not copies)."""
        groups = self._filled
        return {name: moved for group in groups for name, moved in zip(group["names"], self._ends(group), strict=True)}


class ProximalSGD(CompositeOptimizer):
    """Proximal gradient descent: w <- prox_{lr psi}(w - lr g(w)).

    Parameters
    ----------
    params, lr, regularizer, apply_to
        As for :class:`DualAveraging`. The arithmetic of a step is in float64 where the device has it.

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

    def _ends(self, group: Group) -> list[Tensor]:
        return self._points(group)

    def _take(self, group: Group, lr: float) -> None:
        points = self._points(group)
        self._descend(group, points, lr)
        self._count(group, lr)
        self._write(group, points, lr)

    def _put(self, group: Group, values: list[Tensor]) -> None:
        torch._foreach_copy_(group["params"], values)


def _add(tensors: list[Tensor], others: list[Tensor], scale: float) -> None:
    if tensors:
        torch._foreach_add_(tensors, others, alpha=scale)
