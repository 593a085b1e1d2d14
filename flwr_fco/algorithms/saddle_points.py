"""Federated dual extrapolation: dual averaging with an extra step, for saddle points with structure.

Algorithm 1 (FeDualEx) of Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), their symbols in
brackets; the dual is their auxiliary variable omega = sigma-bar - sigma::

    server: dual [omega_0] = grad h(primal [z_0]), elapsed [t_0] = 0
    each round:
        each client: start at dual; for k = 0, 1, ..., K-1, with t = elapsed + client_lr k and two fresh batches, g the
            operator (grad_x f, -grad_y f) [g_m]:
            half [z_{k+1/2}] = retrieve(dual - client_lr g(retrieve(dual, t)), t + client_lr)
            dual            <- dual - client_lr g(half)
            send the increment [omega_K - omega_0] and its own elapsed [eta_c K]
        server: dual    <- dual + server_lr mean(increment)
                elapsed <- elapsed + server_lr mean(elapsed)
                primal   = retrieve(dual, elapsed)

where retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). The problem is min over x, max over y of f(x, y) + psi_1(x) -
psi_2(y), one vector w = (x, y), psi(x, y) = psi_1(x) + psi_2(y); a convex loss to be minimised is the case without y.

The paper's theorems are about the average of the half steps, ``output="ergodic"``: the bound of theorem 4 does not hold
for last points. Its sparsity figures show the last point: an average is dense.

Unequal clients leave a bias of order client_lr even with one local step: the mean of g_m at the clients' own half steps
is not g at a common one.

Differs from the paper in: 1. elapsed is the sum of the step sizes that clients report, not eta_s eta_c r K (equal to
the paper's with equal K); 2. clients with more steps do not weigh more (``normalize_local_work``); 3. the default
output is the last point; 4. psi has the weight of step k + 1 in the half step, as in the paper's formula (2) and its
proofs: one sentence of its text has k + 1/2.


Federated mirror prox: proximal steps with an extra step on the clients, averages of primal points on the server.

Algorithm 2 (FedMiP, appendix H) of Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), their symbols
in brackets::

    server: primal [z_r]
    each round:
        each client: start at primal; for k = 0, 1, ..., K-1, with two fresh batches, g the operator [g_m]:
            half [z_{k+1/2}] = retrieve(grad h(primal) - client_lr g(primal), client_lr)
            primal          <- retrieve(grad h(primal) - client_lr g(half), client_lr)
            send the increment [z_K - z_0] and elapsed, the sum of its step sizes
        server: primal <- retrieve(grad h(primal) + server_lr mean(increment), server_lr mean(elapsed))
                          server_prox=False:   primal + server_lr mean(increment)

where retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). It is the primal twin of FeDualEx and inherits FedMid's
curse: the mean of sparse points is not sparse.

Erratum: as printed, psi acts on the client and again on the server, so FedMiP solves the problem with about twice a psi
that is finite; for a constraint the two are the same, 2 chi = chi. That is the default here; ``server_prox=False``
counts psi once.

In non-Euclidean geometries the server, as printed, adds a difference of primal points to a dual. With
``server_prox=False`` it adds primal points in every geometry.

Differs from the paper in: 1. clients with more steps do not weigh more (``normalize_local_work``); 2. clients may be
weighted by examples; 3. the default output is the last point, the paper's average over the half steps is
``output="ergodic"``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flwr_fco.algorithms.contract import Client, Downlink, Memory, Moved, Problem, Replies, Sent
from flwr_fco.algorithms.contract.choices import Average, Last
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.algorithms.primal_averaging import MirrorDescent, PrimalAveraging, PrimalState

_NO_RULE = {"server_lr": "its clients' increments are no gradients at one point"}


class DualExtrapolation(DualAveraging):
    """Steps of the dual against the operator at extrapolated points, with two new batches each.

    For k < K, with t = elapsed + client_lr k::

        half = retrieve(dual - client_lr g(retrieve(dual, t)), t + client_lr)
        dual <- dual - client_lr g(half)

    With ``output="ergodic"`` clients also send omega_{k+1/2} - omega_0, k = 0..K-1.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 1.

    Examples
    --------
    >>> DualExtrapolation.name, DualExtrapolation.memory, DualExtrapolation.reads
    ('dual_extrapolation', (), 'mean')
    """

    name = "dual_extrapolation"
    sparse = False
    refuses = _NO_RULE

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take the steps, with the half steps if they are asked for."""
        return client.extragradient(downlink.vectors["dual"])


@dataclass(frozen=True, kw_only=True)
class MirrorProx(MirrorDescent):
    """Proximal steps along the operator at extrapolated points, with two new batches each, averaged as primal points.

    For k < K::

        half   = retrieve(grad h(primal) - client_lr g(primal), client_lr)
        primal <- retrieve(grad h(primal) - client_lr g(half), client_lr)

    Parameters
    ----------
    server_prox : bool, default True
        Whether psi also acts in the server's step.
    output : str, default "last"
        With ``"ergodic"`` clients also send z_{k+1/2} - z_0, k = 0..K-1.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 2 (appendix H).

    Examples
    --------
    >>> MirrorProx.name, MirrorProx.memory, MirrorProx.reads
    ('mirror_prox', (), 'mean')
    """

    name = "mirror_prox"
    refuses = _NO_RULE

    #: Both local steps are proximal ones.
    client_prox: bool = field(init=False, default=True)
    output: str | Last | Average = "last"

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take the steps, and send the half points too if they are asked for."""
        return client.proximal_extragradient(downlink.vectors["primal"])

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> Any:
        """Return retrieve(grad h(primal) + server_lr mean(increment), server_lr mean(elapsed)), and the half steps."""
        kind = MirrorDescent if self.server_prox else PrimalAveraging
        following = kind.aggregate(self, problem, state, replies)
        if not problem.plan.sends_every_step:
            return following
        return following._replace(points=state.primal + replies.plain_mean("trajectory"))
