"""What linear models of two classes share: labels in either coding, margins, predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives._linear import LinearModel, as_labels, examples_of
from flwr_fco.objectives.design import Design


class TwoClassModel(LinearModel):
    """A linear model of labels 0 and 1, or -1 and +1; `_targets` are the signs."""

    def _set_examples(self, features: ArrayLike, labels: ArrayLike, *, intercept: bool, l2: float) -> None:
        """Check and store the features and labels."""
        design = Design.of(features)
        self._set_data(design, design.shape[1:], intercept=intercept, l2=l2)
        self.labels = as_labels("labels", labels, self.num_examples)
        found = np.unique(self.labels)
        if np.isin(found, (0, 1)).all():
            self._negative = 0
        elif np.isin(found, (-1, 1)).all():
            self._negative = -1
        else:
            raise ConfigurationError(
                f"labels hold {examples_of(found)}; expected 0 and 1, or -1 and +1. "
                "For more classes use MultinomialLogistic; for names, encode them first (the same way on every client)."
            )
        self._targets = np.where(self.labels == 1, 1.0, -1.0)

    def margins(self, w: Vector) -> Vector:
        """Return <x_i, w> + b: above 0 the label is more likely 1 than not.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of float64, shape (num_examples,)
        """
        return self._scores(w)

    def predict(self, w: Vector) -> NDArray[Any]:
        """Return the more likely label of each of the client's examples, in the coding of `labels`.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        ndarray of int64, shape (num_examples,)
            At a margin of exactly 0 the negative label, as in scikit-learn.
        """
        return np.where(self.margins(w) > 0.0, 1, self._negative)

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the loss and the accuracy.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        dict
            ``loss``: :meth:`value`. ``accuracy``: the share of the examples whose label :meth:`predict` finds.
        """
        scores = self.margins(w)
        loss = self._mean_loss(scores) + self._l2_value(w)
        return {"loss": loss, "accuracy": float(((scores > 0.0) == (self._targets > 0.0)).mean())}
