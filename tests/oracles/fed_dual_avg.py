"""FedDualAvg and FedMid, written from Yuan, Zaheer, Reddi (2021), algorithms 2 to 5; NumPy only, h = 1/2 ||w||^2.

`gradients[m](w)` is client m's gradient, `prox(v, t)` is argmin_w t psi(w) + 1/2 ||w - v||^2 = grad (h + t psi)*(v).
`osp`: algorithms 4 and 5, 'only server proximal'.
"""

import numpy as np


def fed_dual_avg(gradients, prox, start, *, client_lr, server_lr, steps, rounds, osp=False):
    z = start.copy()  # 1: z_{0,0} <- grad h(w_0)
    for r in range(rounds):
        ends = []
        for gradient in gradients:
            zm = z.copy()  # 5: client initial dual state z_{r,0}^m <- z_r
            for k in range(steps):
                eta = server_lr * client_lr * r * steps + client_lr * k  # 7: eta-tilde_{r,k}
                w = zm if osp else prox(zm, eta)  # 8: w_{r,k}^m <- grad (h + eta-tilde psi)*(z_{r,k}^m)
                zm = zm - client_lr * gradient(w)  # 10: z_{r,k+1}^m <- z_{r,k}^m - eta_c g
            ends.append(zm)
        delta = np.mean(ends, axis=0) - z  # 11: Delta_r = mean (z_{r,K}^m - z_{r,0}^m)
        z = z + server_lr * delta  # 12: z_{r+1} <- z_r + eta_s Delta_r
        w = prox(z, server_lr * client_lr * (r + 1) * steps)  # 13: w_{r+1}, psi with eta-tilde_{r+1,0}
    return w


def fed_mid(gradients, prox, start, *, client_lr, server_lr, steps, rounds, osp=False):
    w = start.copy()
    for _ in range(rounds):
        ends = []
        for gradient in gradients:
            wm = w.copy()  # 5: client initial primal state
            for _ in range(steps):
                step = wm - client_lr * gradient(wm)  # 8: grad h(w) - eta_c g, whose ...
                wm = step if osp else prox(step, client_lr)  # ... grad (h + eta_c psi)* is the next point
            ends.append(wm)
        delta = np.mean(ends, axis=0) - w  # 9: Delta_r
        w = prox(w + server_lr * delta, server_lr * client_lr * steps)  # 10: grad (h + eta_s eta_c K psi)*(...)
    return w
