"""Composite optimisers: real ``torch.optim.Optimizer`` classes whose steps take a regularizer into account exactly."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import MirrorMap, Product
from flwr_fco.parameters import Layout
from flwr_fco.regularizers import PerParameter, Regularizer
from flwr_fco.spec import Spec

__all__ = ["CompositeOptimizer", "DualAveraging", "DualExtrapolation", "MirrorProx", "ProximalSGD"]

Parameters = Iterable[Any]
Group = dict[str, Any]
Values = Mapping[str, Tensor | NDArray[Any]]

_NO_NAMES = "pass the parameters with their names: model.named_parameters() instead of model.parameters()"


class CompositeOptimizer(torch.optim.Optimizer):
    """What the optimisers have in common: where psi acts, precision, start and increments, the sum of step sizes.

    Subclasses say what a step is. The parameters' groups may differ in ``lr``, ``regularizer``, ``apply_to``,
    ``mirror_map``, ``scope`` and ``maximize``. The learning rate is read at every step, so schedulers of
    ``torch.optim.lr_scheduler`` work, and :attr:`elapsed` is the sum of the rates that were used.

    Rules
    -----
    1. psi acts on the parameters of two or more dimensions if there are any, else on all but those called ``bias`` or
       ``intercept``: that is what the server does. ``apply_to`` overrides it. A group with a regularizer of its own
       has it on all of its parameters.
    2. A parameter without a gradient (``grad is None``) has the gradient 0: psi and a shift act on it all the same. A
       parameter that is not to change does not belong into an optimiser.
    3. Duals are kept in float64 whatever the dtype of the parameters (``dual_dtype``): a parameter is the small
       difference between its dual and a threshold that grows. On devices without float64 they are kept in float32.
    4. Buffers (running means, counters) are none of an optimiser's business.

    Parameters
    ----------
    params : iterable
        Parameters, ``(name, parameter)`` pairs as of ``model.named_parameters()``, or dictionaries of options with
        one of those under ``"params"``. Names are needed for patterns.
    lr : float, default 1e-2
        The step size.
    regularizer : Regularizer, default Zero()
        psi; :class:`~flwr_fco.regularizers.PerParameter` gives each layer its own.
    mirror_map : MirrorMap, default Euclidean()
        h, on all parameters of a group as one vector.
    apply_to : str or sequence of str, optional
        Shell patterns (``"*.weight"``) of the names of the parameters that psi acts on.
    scope : {"each", "joint"}, default "each"
        Whether psi acts on each parameter or on all of a group together.
    dual_dtype : torch.dtype, optional
        torch.float64 or torch.float32. By default float64 where the device has it.
    foreach : bool, default True
        Whether a step is taken in one call for all parameters. False takes less memory.
    maximize : bool, default False
        Whether to ascend: for the perturbation of an adversarial problem.

    Raises
    ------
    ConfigurationError
        If an argument is not as described, or a regularizer or map has no form on tensors.
    """

    def _step(self, index: int) -> None:
        group = self.param_groups[index]
        lr, duals = float(group["lr"]), self._kept(group, "dual")
        self._descend(group, duals, lr)
        self._advance(group, lr)
        self._write(group, self._geometry(index).retrieve(duals, group["start_elapsed"] + group["used"]))


class _PrimalOptimizer(CompositeOptimizer):
    """An optimiser whose state is the parameters."""

    def _begin(self, index: int) -> None:
        group = self.param_groups[index]
        if "start" not in self.state[group["params"][0]]:
            self._keep(group, "start", [point.clone() for point in self._points(group)])

    @torch.no_grad()
    def start_from(self, vectors: Values, elapsed: float = 0.0) -> None:
        """Begin anew at given points.

        Parameters
        ----------
        vectors : mapping of str to Tensor or ndarray
            The value of each parameter by its name, of its shape.
        elapsed : float, default 0.0
            The sum of the step sizes behind them; the steps do not depend on it.
        """
        for index, group in enumerate(self.param_groups):
            self._write(group, self._start_values(group, vectors))
            for p in group["params"]:
                self.state[p].pop("start", None)
            self._reset_clock(group, elapsed)
            # In the parameters' own precision: what rounding takes away at the start is no increment.
            self._begin(index)

    @torch.no_grad()
    def increments(self) -> dict[str, Tensor]:
        """Return w_K - w_0 by the parameters' names."""
        found = {}
        for index, group in enumerate(self.param_groups):
            self._begin(index)
            for name, end, start in zip(group["names"], self._points(group), self._kept(group, "start"), strict=True):
                found[name] = end - start
        return found


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

    def _step(self, index: int) -> None:
        group = self.param_groups[index]
        lr, own = float(group["lr"]), self._geometry(index)
        duals = own.gradient(self._points(group))
        self._descend(group, duals, lr)
        self._advance(group, lr)
        self._write(group, own.retrieve(duals, lr))


class _Extragradient(CompositeOptimizer):
    """An optimiser that takes two gradients a step: at the point, and at the half-way point."""

    @torch.no_grad()
    def half_step(self) -> None:
        """Go to the half-way point along the gradients at hand; :meth:`step` then takes those found there.

        Raises
        ------
        ConfigurationError
            If the last half step was not completed.
        """
        if self.is_half_way:
            raise ConfigurationError("half_step() twice in a row; complete the step with step() first")
        for index, group in enumerate(self.param_groups):
            self._begin(index)
            group["pending_lr"] = float(group["lr"])
            self._half_step(index)

    @property
    def is_half_way(self) -> bool:
        """Whether a half step has been taken and not been completed."""
        return any(group["pending_lr"] is not None for group in self.param_groups)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take a step, or half of one.

        With a closure: a whole step; the closure is called at the point and at the half-way point, each time for
        fresh gradients (``zero_grad``, a minibatch of its own, ``backward``). Without one: the first call is a half
        step, the second completes it, so that an ordinary training loop takes a whole step with every second
        minibatch. Both halves use the learning rate of the first.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients and returns the loss.

        Returns
        -------
        Any
            What the closure returned first.
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
        """Go back to the point before a half step that will not be completed, such as at the end of an odd epoch."""
        if self.is_half_way:
            for index, group in enumerate(self.param_groups):
                group["pending_lr"] = None
                self._back(index)

    def _complete(self) -> None:
        for index, group in enumerate(self.param_groups):
            self._step(index)
            group["pending_lr"] = None

    @abstractmethod
    def _half_step(self, index: int) -> None:
        """Move a group to its half-way point."""

    @abstractmethod
    def _back(self, index: int) -> None:
        """Move a group back to the point before the half step."""


class DualExtrapolation(_Extragradient, _DualOptimizer):
    """Dual extrapolation: half = P(z - lr g(P(z, t)), t + lr); z <- z - lr g(half); t <- t + lr.

    P(z, t) = argmin_w { -<z, w> + t psi(w) + h(w) }, and the parameters are P(z, t) before and after a step. Takes
    two gradients a step (see :meth:`step`); for saddle problems, give the part that ascends ``maximize=True``.

    Parameters
    ----------
    params, lr, regularizer, mirror_map, apply_to, scope, dual_dtype, foreach, maximize
        As for :class:`DualAveraging`.

    References
    ----------
    Bai, Bullins: Local composite saddle point optimization (ICLR 2024), algorithm 1: the local steps of FeDualEx. The
    weight of psi at the half-way point is that of the next step, as in the paper's proofs.

    Examples
    --------
    The game min_x max_y x y, started at (1, 1), comes to its saddle point 0, where gradient descent-ascent spirals
    away:

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

    def _half_step(self, index: int) -> None:
        group = self.param_groups[index]
        lr = group["pending_lr"]
        duals = [dual.clone() for dual in self._kept(group, "dual")]
        self._descend(group, duals, lr)
        self._write(group, self._geometry(index).retrieve(duals, group["start_elapsed"] + group["used"] + lr))

    def _step(self, index: int) -> None:
        group = self.param_groups[index]
        duals = self._kept(group, "dual")
        self._descend(group, duals, group["pending_lr"])
        self._advance(group, group["pending_lr"])
        self._back(index)

    def _back(self, index: int) -> None:
        group = self.param_groups[index]
        duals = self._kept(group, "dual")
        self._write(group, self._geometry(index).retrieve(duals, group["start_elapsed"] + group["used"]))


class MirrorProx(_Extragradient, _PrimalOptimizer):
    """Composite mirror prox: half = Q(w, g(w)), w <- Q(w, g(half)), Q(w, g) = P(grad h(w) - lr g, lr).

    P(z, t) = argmin_w { -<z, w> + t psi(w) + h(w) }. Takes two gradients a step (see :meth:`step`).

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

    def _half_step(self, index: int) -> None:
        group = self.param_groups[index]
        lr, own = group["pending_lr"], self._geometry(index)
        base = [point.clone() for point in self._points(group)]
        self._keep(group, "base", base)
        duals = own.gradient(base)
        self._descend(group, duals, lr)
        self._write(group, own.retrieve(duals, lr))

    def _step(self, index: int) -> None:
        group = self.param_groups[index]
        lr, own = group["pending_lr"], self._geometry(index)
        duals = own.gradient(self._kept(group, "base"))
        self._descend(group, duals, lr)
        self._advance(group, lr)
        self._write(group, own.retrieve(duals, lr))

    def _back(self, index: int) -> None:
        group = self.param_groups[index]
        self._write(group, self._kept(group, "base"))


# --- arguments -------------------------------------------------------------------------------------------------------


def _as_groups(params: Parameters) -> list[Group]:
    """Return the parameters as groups: PyTorch reads names only from 2.6 on."""
    if isinstance(params, Tensor):
        raise ConfigurationError("params is a tensor; expected an iterable of parameters, such as [tensor]")
    given = list(params)
    if not given:
        raise ConfigurationError("params is empty; expected parameters, such as model.named_parameters()")
    return given if isinstance(given[0], dict) else [{"params": given}]


def matching(names: Iterable[str], maximize: str | Sequence[str] | None) -> set[str]:
    """Return the names that match shell patterns.

    Parameters
    ----------
    names : iterable of str
    maximize : str or sequence of str, or None
        None: no patterns.

    Raises
    ------
    ConfigurationError
        If a pattern matches none.
    """
    known, found = list(names), set()
    for pattern in () if maximize is None else _patterns(maximize):
        hit = {name for name in known if fnmatchcase(name, pattern)}
        if not hit:
            raise ConfigurationError(f"maximize={pattern!r} matches none of the parameters {known}")
        found |= hit
    return found


def sign_groups(named: Sequence[tuple[str, Tensor]], maximize: str | Sequence[str] | None) -> list[Group]:
    """Return parameter groups: what descends, and what ascends if anything does.

    Parameters
    ----------
    named : sequence of (str, Tensor)
    maximize : str or sequence of str, or None
        Shell patterns of what ascends.
    """
    up = matching([name for name, _ in named], maximize)
    parts = ([pair for pair in named if pair[0] not in up], [pair for pair in named if pair[0] in up])
    return [{"params": part, "maximize": ascends} for part, ascends in zip(parts, (False, True), strict=True) if part]


def _patterns(apply_to: str | Sequence[str]) -> tuple[str, ...]:
    return (apply_to,) if isinstance(apply_to, str) else tuple(apply_to)


def _layout(shapes: Mapping[str, tuple[int, ...]], apply_to: str | Sequence[str] | None) -> Layout:
    """Return the layout that a server makes of a model of these shapes, without the memory of one."""
    return Layout.from_arrays(
        {name: np.broadcast_to(np.float64(0.0), shape) for name, shape in shapes.items()},
        apply_to=apply_to,
        pass_through=(),
    )


def _check_group(group: Group) -> None:
    lr = group["lr"]
    if isinstance(lr, bool) or not isinstance(lr, int | float | Tensor) or not 0.0 <= float(lr) < math.inf:
        raise ConfigurationError(f"lr={lr!r}; expected a finite number >= 0")
    if not isinstance(group["regularizer"], Regularizer):
        raise ConfigurationError(
            f"regularizer={group['regularizer']!r}; expected one of flwr_fco.regularizers, such as L1(1e-3)"
        )
    if not isinstance(group["mirror_map"], MirrorMap):
        raise ConfigurationError(
            f"mirror_map={group['mirror_map']!r}; expected one of flwr_fco.mirror_maps, such as Euclidean()"
        )
    if group["scope"] not in ("each", "joint"):
        raise ConfigurationError(f"scope={group['scope']!r}; expected 'each' or 'joint'")
    if not group["named"]:
        if group["apply_to"] is not None:
            raise ConfigurationError(f"apply_to={group['apply_to']!r} needs names: {_NO_NAMES}")
        if isinstance(group["regularizer"], PerParameter) or isinstance(group["mirror_map"], Product):
            raise ConfigurationError(f"PerParameter and Product go by names: {_NO_NAMES}")
    for name, p in zip(group["names"], group["params"], strict=True):
        if isinstance(p, Tensor) and not p.is_floating_point():
            raise ConfigurationError(f"the parameter {name!r} is {p.dtype}; expected a real floating-point dtype")


def _spec(saved: Mapping[str, Any]) -> Spec:
    return Spec(json.loads(saved["header"]), {name: tensor.numpy() for name, tensor in saved["arrays"].items()})
