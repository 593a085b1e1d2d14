"""A loss with a kink, which knows the minimiser of its local problems in closed form."""

import numpy as np

from flwr_fco.engines import Minimum
from flwr_fco.objectives import Layout, Objective


class Distance(Objective):
    """|w - point| + l2/2 |w|^2."""

    smooth = False

    def __init__(self, point, l2=0.0):
        self.point = np.asarray(point, dtype=float)
        self.l2 = l2
        self.num_examples = 1
        self.layout = Layout.from_arrays({"coefficients": self.point})

    def value(self, w):
        return float(np.linalg.norm(w - self.point)) + 0.5 * self.l2 * float(w @ w)

    def gradient(self, w, batch=None, out=None):
        apart = w - self.point
        return np.add(apart / max(np.linalg.norm(apart), 1e-300), self.l2 * w, out=out)

    def strong_convexity(self):
        return self.l2

    def minimiser(self, pull, penalty, start, work, duality):
        modulus = self.l2 + penalty
        apart = pull / modulus - self.point
        shrunk = max(0.0, 1.0 - 1.0 / (modulus * np.linalg.norm(apart)))
        return Minimum(self.point + shrunk * apart, 1, 1, 0, 0.0, work.tolerance, True)
