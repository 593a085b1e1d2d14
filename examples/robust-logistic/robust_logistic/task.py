"""The data on each node, the loss that both sides play for, and the model."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from flwr_fco.objectives import Layout, MultinomialLogistic, SaddleObjective

#: Rows and columns of an image, and how many kinds of images there are.
SHAPE = (8, 8)
CLASSES = 10
PIXELS = SHAPE[0] * SHAPE[1]


class RobustLogistic(SaddleObjective):
    """Logistic regression of ten classes, min over the classifier and max over one perturbation of all images."""

    #: The loss is convex in the perturbation, not concave.
    monotone = False

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images = images
        self.labels = labels
        self.num_examples = len(images)
        self.clean = MultinomialLogistic(images, labels, num_classes=CLASSES)
        self.layout = Layout.from_arrays(initial_model(), apply_to=("coefficients", "perturbation"))
        self.split = self.layout["perturbation"].offset

    def attacked(self, w: np.ndarray, rows: object = slice(None)) -> MultinomialLogistic:
        """Return the classifier's loss on perturbed images."""
        return MultinomialLogistic(self.images[rows] + w[self.split :], self.labels[rows], num_classes=CLASSES)

    def value(self, w: np.ndarray) -> float:
        """Return the mean cross entropy of the perturbed images."""
        return self.attacked(w).value(w[: self.split])

    def gradient(self, w: np.ndarray, batch: np.ndarray | None = None, out: np.ndarray | None = None) -> np.ndarray:
        """Return the gradients by the classifier, and minus that by the perturbation, which ascends."""
        own = self.attacked(w, slice(None) if batch is None else batch).gradient(w[: self.split])
        # A perturbation shifts the scores of all images alike, like the intercept, whose gradient comes last.
        ascent = self.layout.views(w)["coefficients"] @ own[-CLASSES:]
        return np.concatenate([own, -ascent], out=out)

    def metrics(self, w: np.ndarray) -> dict[str, float]:
        """Return loss and accuracy of the perturbed images, and those of the clean ones."""
        point = w[: self.split]
        clean = self.clean.metrics(point)
        return {**self.attacked(w).metrics(point), **{f"clean-{name}": clean[name] for name in clean}}


@cache
def load_images() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images, test images, training labels, test labels: 1,797 digits of 8 x 8 pixels in [0, 1]."""
    images, labels = load_digits(return_X_y=True)
    return tuple(train_test_split(images / 16.0, labels, random_state=0, stratify=labels))


def load_client(partition_id: int, num_partitions: int) -> RobustLogistic:
    """Return the loss on a node's share of the digits."""
    images, _, labels, _ = load_images()
    own = slice(partition_id, None, num_partitions)
    return RobustLogistic(images[own], labels[own])


def load_file(path: str) -> RobustLogistic:
    """Return the loss on an ``.npz`` with ``images`` (their pixels from 0 to 16 each) and ``labels`` (from 0)."""
    with np.load(path) as file:
        return RobustLogistic(file["images"].reshape(len(file["labels"]), PIXELS) / 16.0, file["labels"])


def load_server() -> tuple[RobustLogistic, RobustLogistic]:
    """Return the losses on all training and all test digits, to attack and to score models on the server."""
    train, test, train_labels, test_labels = load_images()
    return RobustLogistic(train, train_labels), RobustLogistic(test, test_labels)


def strongest_attack(loss: RobustLogistic, w: np.ndarray, strength: float, bound: float) -> np.ndarray:
    """Return the model with the most harmful perturbation found, from its own and from eight random ones.

    The loss is convex in the perturbation and lies above its tangents, so a step to the best corner of the box for the
    tangent never lowers it. From inside the box the price would often lead to no attack: first comes a corner without.
    """
    place = slice(loss.split, None)
    rng = np.random.default_rng(0)
    best = w
    most = -np.inf
    for start in [w[place], *(rng.uniform(-bound, bound, PIXELS) for _ in range(8))]:
        attacked = w.copy()
        attacked[place] = start
        for price in (0.0, strength):
            value = -np.inf
            while (gained := loss.value(attacked) - price * np.abs(attacked[place]).sum()) > value:
                value = gained
                kept = attacked.copy()
                ascent = -loss.gradient(attacked)[place]
                attacked[place] = bound * np.sign(ascent) * (np.abs(ascent) > price)
            attacked = kept
        if value > most:
            best = kept
            most = value
    return best


def initial_model(bound: float = 0.0) -> dict[str, np.ndarray]:
    """Return the start point, the perturbation at random in its box: from 0 it could not leave 0."""
    perturbation = np.random.default_rng(0).uniform(-bound, bound, PIXELS)
    return {"coefficients": np.zeros((PIXELS, CLASSES)), "intercept": np.zeros(CLASSES), "perturbation": perturbation}
