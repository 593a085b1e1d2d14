"""Three rivals; NumPy only.

FedCM is written from Xu, Wang, Wang, Yao (2021), algorithm 2. Two are from memory, without the papers' texts: RandProx
is algorithm 1 of Condat, Richtarik (2023) with g = 0 and K = Id on the clients' product space. `decoupled` is Zhang,
Hu, Johansson (2023), algorithm 1: one vector up and one down, from which a client finds its correction.
"""

import numpy as np


def fed_cm(gradients, start, *, client_lr, server_lr, steps, rounds, mix):
    x, delta = start.copy(), np.zeros_like(start)  # Delta_0 = 0
    for _ in range(rounds):
        ends = []
        for gradient in gradients:
            xi = x.copy()
            for _ in range(steps):
                v = mix * gradient(xi) + (1 - mix) * delta  # 8: v <- alpha g + (1 - alpha) Delta_t
                xi = xi - client_lr * v  # 9: x <- x - eta_l v
            ends.append(xi)
        move = np.mean(ends, axis=0) - x
        delta = -move / (client_lr * steps)  # 14: Delta_{t+1} <- -mean (x_{i,K} - x_t) / (eta_l K)
        x = x + server_lr * move  # 15
    return x


def decoupled(gradients, prox, start, *, client_lr, server_lr, steps, rounds):
    """Return P(x-bar) after the rounds; eta-tilde = eta_g eta tau. The start must be its own proximal map."""
    weight = server_lr * client_lr * steps
    x_bar = start.copy()
    corrections = [np.zeros_like(start) for _ in gradients]  # c_i^1 = 0
    for _ in range(rounds):
        first = prox(x_bar, weight)  # z-hat_{i,0} <- P_{eta-tilde g}(x-bar^r)
        ends, own = [], []
        for gradient, c in zip(gradients, corrections, strict=True):
            z_hat, z, total = first.copy(), first.copy(), np.zeros_like(first)
            for t in range(steps):
                g = gradient(z)
                total = total + g
                z_hat = z_hat - client_lr * (g + c)  # z-hat_{i,t+1} <- z-hat_{i,t} - eta (g + c_i)
                z = prox(z_hat, (t + 1) * client_lr)  # z_{i,t+1} <- P_{(t+1) eta g}(z-hat_{i,t+1})
            ends.append(z_hat)
            own.append(total / steps)
        x_bar = first + server_lr * (np.mean(ends, axis=0) - first)  # x-bar^{r+1}
        common = (first - x_bar) / weight  # c_i^{r+1} <- (P(x-bar^r) - x-bar^{r+1}) / eta-tilde - mean_t g_{i,t}
        corrections = [common - g for g in own]
    return prox(x_bar, weight)


def rand_prox(gradients, start, *, client_lr, probability, rounds):
    """Return the clients' common point after the rounds; the coin falls after every 1/probability-th step.

    h is the indicator of x_1 = ... = x_M, R^t(d) = d / p when the coin falls and 0 otherwise: omega = 1/p - 1. The dual
    step is the largest that gamma tau (1 + omega) <= 1 allows.
    """
    omega = 1 / probability - 1
    tau = 1 / (client_lr * (1 + omega))
    x = np.tile(start, (len(gradients), 1))
    u = np.zeros_like(x)  # u^0 in the range of K: its mean is 0
    for _ in range(rounds):
        for k in range(1, round(1 / probability) + 1):
            x_hat = x - client_lr * np.array([g(own) for g, own in zip(gradients, x, strict=True)]) - client_lr * u
            v = u + tau * x_hat
            d = v - tau * np.mean(v / tau, axis=0) - u  # prox_{tau h*}(v) - u, by Moreau: the mean is prox_{h / tau}
            falls = k == round(1 / probability)
            u_next = u + (d / probability if falls else 0.0) / (1 + omega)  # u^{t+1} = u^t + R^t(d) / (1 + omega)
            x = x_hat - client_lr * (1 + omega) * (u_next - u)  # x^{t+1}
            u = u_next
    return x.mean(axis=0)
