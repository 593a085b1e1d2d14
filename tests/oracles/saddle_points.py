"""FeDualEx and FedMiP, written from Bai, Bullins (2024), algorithm 1 and appendix H; NumPy only, h = 1/2 ||z||^2.

`operators[m](z)` is client m's (grad_x f, -grad_y f), `prox(v, t)` is argmin_w t psi(w) + 1/2 ||w - v||^2.
"""

import numpy as np


def fe_dual_ex(operators, prox, start, *, client_lr, server_lr, steps, rounds):
    omega = start.copy()  # the auxiliary dual, sigma-bar - sigma
    for r in range(rounds):
        ends = []
        for operator in operators:
            om = omega.copy()
            for k in range(steps):
                t = server_lr * client_lr * r * steps + client_lr * k
                z = prox(om, t)  # z_{r,k} <- Prox(sigma-bar - sigma_{r,k})
                half = prox(om - client_lr * operator(z), t + client_lr)  # z_{r,k+1/2}, psi with the weight of k + 1
                om = om - client_lr * operator(half)  # sigma_{r,k+1} <- sigma_{r,k} + eta_c g(z_{r,k+1/2})
            ends.append(om)
        omega = omega + server_lr * (np.mean(ends, axis=0) - omega)  # sigma_{r+1} <- sigma_r + eta_s Delta_r
    return prox(omega, server_lr * client_lr * rounds * steps)


def fed_mip(operators, prox, start, *, client_lr, server_lr, steps, rounds):
    z = start.copy()
    for _ in range(rounds):
        ends = []
        for operator in operators:
            zm = z.copy()
            for _ in range(steps):
                half = prox(zm - client_lr * operator(zm), client_lr)  # z_{r,k+1/2}
                zm = prox(zm - client_lr * operator(half), client_lr)  # z_{r,k+1}
            ends.append(zm)
        z = prox(z + server_lr * (np.mean(ends, axis=0) - z), server_lr * client_lr * steps)
    return z
