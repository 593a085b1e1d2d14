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

from flwr_fco.core.validation import MOMENTUM, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean, MirrorMap, Product
from flwr_fco.regularizers import PerParameter, Regularizer, Zero
from flwr_fco.regularizers.base import Scope
from flwr_fco.torch import state as model_state
from flwr_fco.torch.geometry import Geometry, geometry
from flwr_fco.torch.regularizers import widest_dtype
from flwr_fco.torch.state import Group, Parameters

# Quoted, as in `Scores`: where the reference is built without PyTorch, its Tensor is a stand-in.
Values = Mapping[str, "Tensor | NDArray[Any]"]

#: Counters of a group, reset at its start.
_CLOCK: Group = {"start_elapsed": 0.0, "used": 0.0, "steps": 0, "pull": 0.0, "pending_lr": None}


class CompositeOptimizer(torch.optim.Optimizer):
    """Base class of the optimisers: where psi acts, precision, start and increments, the sum of step sizes.

    Subclasses define the step. Parameter groups may differ in ``lr``, ``regularizer``, ``apply_to``, ``mirror_map``,
    ``scope`` and ``maximize``. The learning rate is read at every step, so the schedulers in
    ``torch.optim.lr_scheduler`` work, and :attr:`elapsed` is the sum of the learning rates used.

    Notes
    -----
    1. psi acts on the parameters with two or more dimensions if there are any, otherwise on all except those called
       ``bias`` or ``intercept``, as on the server. ``apply_to`` overrides this rule. A regularizer set for a group acts
       on all of the group's parameters.
    2. A parameter without a gradient (``grad is None``) has the gradient 0; psi and a shift still act on it. Leave
       parameters that must not change out of the optimiser.
    3. Duals are kept in float64 whatever the dtype of the parameters (``dual_dtype``), because a parameter is the small
       difference between its dual and a growing threshold. On devices without float64 they are kept in float32.
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
    mirror_map : MirrorMap, default Euclidean()
        h, on all parameters of a group as one vector.
    apply_to : str or sequence of str, optional
        Shell patterns (``"*.weight"``) of the names of the parameters that psi acts on.
    scope : {"each", "joint"}, default "each"
        Whether psi acts on each parameter separately or on all parameters of a group together.
    dual_dtype : torch.dtype, optional
        torch.float64 or torch.float32. By default float64 if the device supports it.
    foreach : bool, default True
        Whether a step is taken in one call for all parameters. False takes less memory. Large tensors on a CPU are
        always processed one by one, which is faster there.
    maximize : bool, default False
        Whether to ascend, for example for the perturbation in an adversarial problem.

    Raises
    ------
    ConfigurationError
        If an argument is not as described, or a regularizer or map has no tensor version. At the first step: if a
        pattern in ``apply_to``, ``PerParameter`` or ``Product`` matches no parameter in the groups that use it, because
        a misspelt name would leave its parameter without a regularizer.

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
        mirror_map: MirrorMap | None = None,
        apply_to: str | Sequence[str] | None = None,
        scope: Scope = "each",
        dual_dtype: torch.dtype | None = None,
        foreach: bool = True,
        maximize: bool = False,
    ) -> None:
        if dual_dtype not in (None, torch.float64, torch.float32):
            raise ConfigurationError(f"dual_dtype={dual_dtype!r}; expected torch.float64, torch.float32 or None")
        self.dual_dtype, self.foreach, self._apply_to = dual_dtype, foreach, apply_to
        self._geometries: dict[int, tuple[list[torch.device], Geometry]] = {}
        psi, h = Zero() if regularizer is None else regularizer, Euclidean() if mirror_map is None else mirror_map
        defaults = {"lr": model_state.plain(lr), "regularizer": psi, "mirror_map": h, "apply_to": apply_to}
        super().__init__(model_state.as_groups(params), {**defaults, "scope": scope, "maximize": maximize})
        if not any(group["params"] for group in self.param_groups):
            raise ConfigurationError("no group has any parameters; expected some, such as model.named_parameters()")

    # --- groups ------------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters with its own options.

        Parameters
        ----------
        param_group : dict
            ``"params"`` and any of the options ``lr``, ``regularizer``, ``mirror_map``, ``apply_to``, ``scope``,
            ``maximize``.
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
        self._geometries.clear()

    @property
    def regularizers(self) -> dict[str, Regularizer | None]:
        """Regularizer of each parameter by name; None if psi does not act on it."""
        pairs = [pair for group in self.param_groups for pair in zip(group["names"], group["params"], strict=True)]
        shapes = {name: tuple(p.shape) for name, p in pairs}
        by_default = model_state.regularized_names(shapes)
        self._require_patterns(list(shapes))
        regularizers: dict[str, Regularizer | None] = {}
        acted_on: dict[PerParameter, list[str]] = {}
        for group in self.param_groups:
            psi, hit = group["regularizer"], by_default if group["apply_to"] is None else set[str]()
            if group["everywhere"]:
                hit = set(group["names"])
            elif group["apply_to"] is not None:
                patterns = model_state.patterns_of(group["apply_to"])
                hit = {name for name in group["names"] if any(fnmatchcase(name, pattern) for pattern in patterns)}
            regularizers |= {name: psi.for_array(name) if name in hit else None for name in group["names"]}
            if isinstance(psi, PerParameter):
                acted_on.setdefault(psi, []).extend(name for name in group["names"] if name in hit)
        for psi, names in acted_on.items():
            psi.require_names(names, [name for name in shapes if regularizers[name] is None and name not in names])
        return regularizers

    def _require_patterns(self, names: Sequence[str]) -> None:
        """Raise if a pattern in `apply_to` or in a Product matches no parameter in its groups."""
        named = [group for group in self.param_groups if group["named"]]
        if self._apply_to is not None and named:
            model_state.matching(names, self._apply_to)
        mapped: dict[Product, list[str]] = {}
        for group in named:
            if group["apply_to"] != self._apply_to:
                model_state.matching(group["names"], group["apply_to"])
            if isinstance(group["mirror_map"], Product):
                mapped.setdefault(group["mirror_map"], []).extend(group["names"])
        for product, group_names in mapped.items():
            product.require_names(group_names)

    @property
    def _filled(self) -> list[Group]:
        """The non-empty groups; PyTorch allows empty groups."""
        return [group for group in self.param_groups if group["params"]]

    def _geometry(self, group: Group) -> Geometry:
        """Return the map from a group's duals to its parameters, built at the first call and when a device changes."""
        devices = [p.device for p in group["params"]]
        kept = self._geometries.get(id(group))
        if kept is None or kept[0] != devices:
            psi, like = self.regularizers, [torch.empty_like(p, dtype=self._dtype(p)) for p in group["params"]]
            psis, options = [psi[name] for name in group["names"]], {"scope": group["scope"], "foreach": self.foreach}
            kept = devices, geometry(group["mirror_map"], psis, group["names"], like, **options)
            self._geometries[id(group)] = kept
        return kept[1]

    def _dtype(self, p: Tensor) -> torch.dtype:
        return self.dual_dtype or widest_dtype(p)

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
        """Return the parameters in the precision of the duals, copied only if the dtype differs."""
        return [p.detach().to(self._dtype(p)) for p in group["params"]]

    def _descend(self, group: Group, duals: list[Tensor], lr: float) -> None:
        """Take a step against the gradients and the shifts: z <- z - lr (g + shift)."""
        having = [(dual, p.grad) for p, dual in zip(group["params"], duals, strict=True) if p.grad is not None]
        if any(gradient.is_sparse for _, gradient in having):
            what = f"{type(self).__name__} takes no sparse gradients"
            raise ConfigurationError(f"{what}; make the embedding with sparse=False")
        chosen = [dual for dual, _ in having]
        _add(chosen, self._directions(group, [gradient for _, gradient in having]), lr if group["maximize"] else -lr)
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
    def _take(self, group: Group, lr: float, *, half: bool = False) -> None:
        """Take a step for a group, or only go to the half-way point where the second gradients are taken."""

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

    def _evaluate(self, closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

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
        loss = self._evaluate(closure)
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
            One value per parameter name, of the parameter's shape. For :class:`DualAveraging` and
            :class:`DualExtrapolation` these are duals, and the parameters become their primal points at time `elapsed`;
            for other optimisers they are the parameters' values.
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

    def set_shift(self, shifts: Values | None) -> None:
        """Set vectors to add to every gradient, such as a tracker; their sign does not change with maximize.

        Parameters
        ----------
        shifts : mapping of str to Tensor or ndarray, or None
            One vector per parameter name; None removes them.
        """
        for group in self.param_groups:
            if shifts is not None:
                # Those that do not fit leave the earlier ones.
                self._keep(group, "shift", self._start_values(group, shifts))
            else:
                for p in group["params"]:
                    self.state[p].pop("shift", None)

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
            for key in ("regularizer", "mirror_map"):
                group[key] = model_state.saved_spec(group.pop(key).to_spec())
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from :meth:`state_dict`; duals keep their precision."""
        saved = [dict(group) for group in state_dict["param_groups"]]
        if len(saved) != len(self.param_groups):
            what = f"the state has {len(saved)} parameter group(s)"
            raise ConfigurationError(f"{what}, the optimiser {len(self.param_groups)}")
        for group, present in zip(saved, self.param_groups, strict=True):
            if group["names"] != present["names"]:
                what = f"the state is of the parameters {group['names']}"
                raise ConfigurationError(f"{what}, these are {present['names']}")
            group["regularizer"] = Regularizer.from_spec(model_state.spec_of(group["regularizer"]))
            group["mirror_map"] = MirrorMap.from_spec(model_state.spec_of(group["mirror_map"]))
        super().load_state_dict({**state_dict, "param_groups": saved})
        # PyTorch casts the loaded tensors to the parameters' dtypes; duals must keep theirs.
        ids = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, p in zip(ids, parameters, strict=True):
            for key, value in state_dict["state"].get(number, {}).items():
                self.state[p][key] = value.to(device=p.device, copy=True)
        self._geometries.clear()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimiser."""
        super().__setstate__(state)
        self._geometries = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: PyTorch's own, and the options `foreach`, `dual_dtype` and `apply_to`."""
        state = super().__getstate__()
        return {**state, "dual_dtype": self.dual_dtype, "foreach": self.foreach, "_apply_to": self._apply_to}


class _DualOptimizer(CompositeOptimizer):
    """An optimiser whose state is a dual."""

    def _begin(self, group: Group) -> None:
        if "dual" not in self.state[group["params"][0]]:
            self._keep(group, "dual", self._geometry(group).gradient(self._points(group)))
        super()._begin(group)

    def _ends(self, group: Group) -> list[Tensor]:
        return self._kept(group, "dual")

    def _take(self, group: Group, lr: float, *, half: bool = False) -> None:
        duals = [dual.clone() for dual in self._ends(group)] if half else self._ends(group)
        self._descend(group, duals, lr)
        if not half:
            self._count(group, lr)
        time = group["start_elapsed"] + group["used"] + (lr if half else 0.0)
        self._geometry(group).write(duals, time, group["params"])

    def _put(self, group: Group, values: list[Tensor]) -> None:
        self._keep(group, "dual", values)
        self._back(group)

    def _back(self, group: Group) -> None:
        """Set the parameters to the primal points of the duals."""
        time = group["start_elapsed"] + group["used"]
        self._geometry(group).write(self._ends(group), time, group["params"])

    @property
    def duals(self) -> dict[str, Tensor]:
        """The duals by parameter name (not copies)."""
        for group in self._filled:
            self._begin(group)
        return self._kept_duals()

    def _kept_duals(self) -> dict[str, Tensor]:
        """Return what is kept of each parameter as its dual, by name."""
        groups = self._filled
        return {name: dual for group in groups for name, dual in zip(group["names"], self._ends(group), strict=True)}


class DualAveraging(_DualOptimizer):
    """Dual averaging: z <- z - lr g(w), t <- t + lr, w = argmin_w { -<z, w> + t psi(w) + h(w) }.

    With the Euclidean map w = prox_{t psi}(z); without psi this is SGD. Parameters are exactly sparse, low-rank or
    feasible after every step. At the first step the dual is initialised to grad h of the parameters; later changes to
    the parameters from outside are overwritten by the next step.

    Parameters
    ----------
    params : iterable
        Parameters, named parameters (``model.named_parameters()``) or groups of either.
    lr : float, default 1e-2
        The step size, and the growth of psi's weight in a step.
    regularizer : Regularizer, default Zero()
        psi.
    mirror_map : MirrorMap, default Euclidean()
        h.
    apply_to : str or sequence of str, optional
        Shell patterns of the names of the parameters that psi acts on; by default those with two or more dimensions.
    scope : {"each", "joint"}, default "each"
        Whether psi acts on each parameter separately or on all parameters of a group together.
    dual_dtype : torch.dtype, optional
        dtype of the duals, torch.float64 or torch.float32; by default float64 if the device supports it.
    foreach : bool, default True
        Whether a step is taken in one call for all parameters.
    maximize : bool, default False
        Whether to ascend.
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

    def set_shift(self, shifts: Values | None) -> None:
        """Set vectors to add to every gradient, without momentum only; see :meth:`CompositeOptimizer.set_shift`."""
        if shifts is not None and any(group["momentum"] for group in self.param_groups):
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
            moved = [torch.zeros(p.shape, dtype=torch.float32, device=p.device) for p in group["params"]]
            self._keep(group, "dual", moved)
            self._back(group)

    def _dtype(self, p: Tensor) -> torch.dtype:
        return torch.float32

    def _take(self, group: Group, lr: float, *, half: bool = False) -> None:
        self._descend(group, self._ends(group), lr)
        self._count(group, lr)
        self._back(group)

    def _back(self, group: Group) -> None:
        time = group["start_elapsed"] + group["used"]
        self._geometry(group).write_sum(self._kept(group, "start"), self._ends(group), time, group["params"])

    @torch.no_grad()
    def increments(self) -> dict[str, Tensor]:
        """Return the increments since the start by parameter name (not copies)."""
        return self._kept_duals()


class _PrimalOptimizer(CompositeOptimizer):
    """An optimiser whose state is the parameters."""

    def _ends(self, group: Group) -> list[Tensor]:
        return self._points(group)

    def _take(self, group: Group, lr: float, *, half: bool = False) -> None:
        if half:
            self._keep(group, "base", [point.clone() for point in self._points(group)])
        points = self._points(group) if group["pending_lr"] is None else self._kept(group, "base")
        duals = self._geometry(group).gradient(points)
        self._descend(group, duals, lr)
        if not half:
            self._count(group, lr)
        self._geometry(group).write(duals, lr, group["params"])

    def _put(self, group: Group, values: list[Tensor]) -> None:
        torch._foreach_copy_(group["params"], values)

    def _back(self, group: Group) -> None:
        """Reset the parameters to the point before the half step."""
        self._put(group, self._kept(group, "base"))


class ProximalSGD(_PrimalOptimizer):
    """Proximal (mirror) descent: w <- argmin_u { -<grad h(w) - lr g(w), u> + lr psi(u) + h(u) }.

    With the Euclidean map w <- prox_{lr psi}(w - lr g).

    Parameters
    ----------
    params, lr, regularizer, mirror_map, apply_to, scope, dual_dtype, foreach, maximize
        As for :class:`DualAveraging`; ``dual_dtype`` is the precision of the step's arithmetic.

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


class _Extragradient(CompositeOptimizer):
    """An optimiser that takes two gradients per step: at the current point and at the half-way point."""

    @torch.no_grad()
    def half_step(self) -> None:
        """Go to the half-way point along the current gradients; :meth:`step` then uses the gradients computed there.

        Raises
        ------
        ConfigurationError
            If the last half step was not completed.
        """
        if self.is_half_way:
            raise ConfigurationError("half_step() twice in a row; complete the step with step() first")
        for group in self._filled:
            self._begin(group)
            group["pending_lr"] = float(group["lr"])
            self._take(group, group["pending_lr"], half=True)

    @property
    def is_half_way(self) -> bool:
        """Whether a half step has been taken but not completed."""
        return any(group["pending_lr"] is not None for group in self.param_groups)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take a step, or half of one.

        With a closure: a whole step; the closure is called at the current point and at the half-way point, each time
        to compute new gradients (``zero_grad``, a new minibatch, ``backward``). Without one: the first call is a half
        step and the second completes it, so an ordinary training loop takes a whole step with every second minibatch.
        Both halves use the learning rate of the first.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients and returns the loss.

        Returns
        -------
        Any
            The closure's first return value.
        """
        if closure is None:
            if self.is_half_way:
                self._complete()
            else:
                self.half_step()
            return None
        loss = self._evaluate(closure)
        if not self.is_half_way:
            self.half_step()
            self._evaluate(closure)
        self._complete()
        return loss

    @torch.no_grad()
    def undo_half_step(self) -> None:
        """Return to the point before a half step that will not be completed, as after an odd number of minibatches."""
        if self.is_half_way:
            for group in self._filled:
                group["pending_lr"] = None
                self._back(group)

    def _complete(self) -> None:
        for group in self._filled:
            self._take(group, group["pending_lr"])
            group["pending_lr"] = None

    @abstractmethod
    def _back(self, group: Group) -> None:
        """Undo the half step of a group."""


class DualExtrapolation(_DualOptimizer, _Extragradient):
    """Dual extrapolation: half = P(z - lr g(P(z, t)), t + lr); z <- z - lr g(half); t <- t + lr.

    P(z, t) = argmin_w { -<z, w> + t psi(w) + h(w) }, and the parameters are P(z, t) before and after a step. Takes
    two gradients per step (see :meth:`step`); for saddle problems, set ``maximize=True`` for the part that ascends.

    Parameters
    ----------
    params, lr, regularizer, mirror_map, apply_to, scope, dual_dtype, foreach, maximize
        As for :class:`DualAveraging`.

    References
    ----------
    Bai, Bullins: Local composite saddle point optimization (ICLR 2024), algorithm 1: the local steps of FeDualEx. At
    the half-way point psi has the weight of the next step, as in the paper's proofs.

    Examples
    --------
    The game min_x max_y x y, started at (1, 1), converges to its saddle point 0, whereas gradient descent-ascent
    spirals away:

    >>> import torch
    >>> x, y = torch.nn.Parameter(torch.ones(1, 1)), torch.nn.Parameter(torch.ones(1, 1))
    >>> optimizer = DualExtrapolation([{"params": [x]}, {"params": [y], "maximize": True}], lr=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     (x * y).sum().backward()
    >>> for _ in range(100):
    ...     optimizer.step(closure)
    >>> bool(x.abs() < 1e-4) and bool(y.abs() < 1e-4)
    True
    """


class MirrorProx(_PrimalOptimizer, _Extragradient):
    """Composite mirror prox: half = Q(w, g(w)), w <- Q(w, g(half)), Q(w, g) = P(grad h(w) - lr g, lr).

    P(z, t) = argmin_w { -<z, w> + t psi(w) + h(w) }. Takes two gradients per step (see :meth:`step`).

    Parameters
    ----------
    params, lr, regularizer, mirror_map, apply_to, scope, dual_dtype, foreach, maximize
        As for :class:`DualAveraging`; ``dual_dtype`` is the precision of the step's arithmetic.

    References
    ----------
    Bai, Bullins: Local composite saddle point optimization (ICLR 2024), algorithm 2 (FedMiP): the local steps.

    Examples
    --------
    >>> import torch
    >>> w = torch.nn.Parameter(torch.ones(1, 1))
    >>> optimizer = MirrorProx([w], lr=0.5)
    >>> for _ in range(2):  # two gradients make a step: half = 1 - 0.5 * 1, w = 1 - 0.5 * half
    ...     optimizer.zero_grad()
    ...     (w**2 / 2).sum().backward()
    ...     optimizer.step()
    >>> w.item(), optimizer.num_steps
    (0.75, 1)
    """


def _add(tensors: list[Tensor], others: list[Tensor], scale: float) -> None:
    if tensors:
        torch._foreach_add_(tensors, others, alpha=scale)
