"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh (ICML 2020), algorithm 1; their symbols in brackets::

    each round, each client of the sample: start at the model [theta]; for k = 0, 1, ..., with gradient g:
            primal [theta_i] <- primal - client_lr [eta_l] (g - own [c_i] + control [c])
        send the increment; own <- the gradient at the model (option 1), or
                            own - control + (theta - theta_i) / (K eta_l)         (option 2, the default)
    server: primal <- primal + server_lr [eta_g] mean(increment)
            control <- control + (|S|/N) mean(change of own)                      (the mean of all clients' own)

In the Euclidean geometry without psi this is FedDA-GT with trackers that start at 0 and U = 11'/M, and it is
implemented as that: dual and primal coincide, and with option 2 only the increment is sent up.

Other mirror maps and psi are extensions; they compose through `retrieve` as in FedDA-GT.

Differs from the paper in: 1. weights p_m and unequal local work, as in FedDA-GT; 2. with option 2 neither `control` (at
full participation) nor the change of `own` is sent, because the other side can derive them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from flwr_fco.strategies.gradient_tracking.fed_da_gt import FedDAGT


@dataclass(repr=False, eq=False, kw_only=True)
class Scaffold(FedDAGT):
    """SCAFFOLD, with control variates that start at 0; psi and non-Euclidean mirror maps are extensions.

    Parameters
    ----------
    variate : {"average", "gradient"}, default "average"
        A client's new control variate: the mean of its gradients in the round (option 2), or its full gradient at the
        model that it was sent (option 1: one more pass over its data, and one more vector up).

    References
    ----------
    Karimireddy and others: SCAFFOLD (ICML 2020), algorithm 1.

    Examples
    --------
    >>> Scaffold(client_lr=0.1, local_steps=5).variate
    'average'
    """

    source: ClassVar[str] = "Karimireddy and others 2020"
    remembers: ClassVar[str] = "a control variate"
    traffic: ClassVar[str] = "1 / 1; with a sample 2 / 1; option 1: 2 / 2"

    variate: Literal["average", "gradient"] = "average"
    tracker_start: Literal["gradient", "zero"] = field(init=False, default="zero")

    @property
    def variate_source(self) -> str:
        """Source of a client's own control variate."""
        return self.variate
