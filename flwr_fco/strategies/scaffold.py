"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh (ICML 2020), algorithm 1; their symbols in brackets::

    each round, each client of the sample: start at the model [theta]; for k = 0, 1, ..., with gradient g:
            primal [theta_i] <- primal - client_lr [eta_l] (g - own [c_i] + control [c])
        send the increment; own <- the gradient at the model (option 1), or
                            own - control + (theta - theta_i) / (K eta_l)         (option 2, the default)
    server: primal <- primal + server_lr [eta_g] mean(increment)
            control <- control + (|S|/N) mean(change of own)                      (the mean of all clients' own)

In the Euclidean geometry without psi this is FedDA-GT with trackers that start at 0 and U = 11'/M, and so it is
implemented: dual and primal coincide, and with option 2 nothing but the increment goes up.

Other mirror maps and psi are extensions; they compose through `retrieve` as in FedDA-GT.

Differs from the paper in: 1. weights p_m and unequal local work, as in FedDA-GT; 2. with option 2 neither `control`
(at full participation) nor the change of `own` travels, because the other side can derive them.
"""

from __future__ import annotations

from typing import Literal, Unpack

from flwr_fco.errors import ConfigurationError
from flwr_fco.strategies.base import CompositeOptions
from flwr_fco.strategies.fed_da_gt import FedDAGT

__all__ = ["Scaffold"]


class Scaffold(FedDAGT):
    """SCAFFOLD, with control variates that start at 0.

    Parameters
    ----------
    variate : {"average", "gradient"}, default "average"
        A client's new control variate: the mean of its gradients in the round (option 2), or its full gradient at the
        model that it was sent (option 1: one more pass over its data, and one more vector up).
    client_state, ledger_bytes, window, sparsity
        See :class:`FedDAGT`.
    **options
        See :class:`CompositeStrategy`. psi and mirror maps other than ``Euclidean()`` are extensions.

    References
    ----------
    Karimireddy and others: SCAFFOLD (ICML 2020), algorithm 1.

    Examples
    --------
    >>> Scaffold(client_lr=0.1, local_steps=5).variate
    'average'
    """

    def __init__(
        self,
        *,
        variate: Literal["average", "gradient"] = "average",
        client_state: Literal["ledger", "reset"] | None = None,
        ledger_bytes: int = 256 * 2**20,
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        super().__init__(
            tracker_start="zero",
            client_state=client_state,
            ledger_bytes=ledger_bytes,
            window=window,
            sparsity=sparsity,
            **options,
        )
        if variate not in ("average", "gradient"):
            raise ConfigurationError(f"variate={variate!r}; expected 'average' (option 2) or 'gradient' (option 1)")
        self.variate = variate
