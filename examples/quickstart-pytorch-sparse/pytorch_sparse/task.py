"""The network, each node's images, and the training loop: nothing here knows of flwr_fco but the data's partition."""

import functools
import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from flwr_fco.datasets import iid_partition


class Net(nn.Module):
    """Two convolutions and three linear layers, for images of 28 x 28."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, images):
        """Return the scores of the ten digits."""
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.conv2(hidden)), 2).flatten(1)
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(hidden)))))


@functools.cache
def load_images(path, part):
    """Return the images (with values in [-1, 1]) and labels of "train" or "t10k", from MNIST's four files."""
    images, labels = (
        np.frombuffer(gzip.decompress(Path(path, f"{part}-{kind}-ubyte.gz").read_bytes()), np.uint8)
        for kind in ("images-idx3", "labels-idx1")
    )
    # The files begin with their kind and sizes.
    images = torch.tensor(images[16:]).reshape(-1, 1, 28, 28)
    return images.float() / 127.5 - 1.0, torch.tensor(labels[8:]).long()


def load_data(partition_id, num_partitions, batch_size, path, num_images):
    """Return a node's training and test loaders: 80 % and 20 % of its part of the training images."""
    images, labels = load_images(path, "train")
    rows = iid_partition(num_images, num_partitions, np.random.default_rng(0))[partition_id]
    return loaders(images, labels, np.random.default_rng(partition_id).permutation(rows), batch_size)


def load_file(path, batch_size):
    """Return the same from an ``.npz``: ``images`` (28 x 28 pixels from 0 to 255 each) and ``labels`` (0 to 9)."""
    with np.load(path) as file:
        labels = torch.tensor(file["labels"]).long()
        images = torch.tensor(file["images"]).reshape(len(labels), 1, 28, 28).float() / 127.5 - 1.0
    return loaders(images, labels, np.random.default_rng(0).permutation(len(labels)), batch_size)


def loaders(images, labels, rows, batch_size):
    """Return loaders of the first 80 % and the last 20 % of some rows."""
    train, test = np.split(rows, [int(0.8 * rows.size)])
    trainloader = DataLoader(TensorDataset(images[train], labels[train]), batch_size=batch_size, shuffle=True)
    return trainloader, DataLoader(TensorDataset(images[test], labels[test]), batch_size=256)


def load_test(path):
    """Return a loader of the 10,000 test images."""
    return DataLoader(TensorDataset(*load_images(path, "t10k")), batch_size=1000)


def train(net, loader, epochs, optimizer, device):
    """Train for some epochs; return the mean loss."""
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


@torch.no_grad()
def test(net, loader, device):
    """Return the mean loss and the accuracy."""
    net.eval()
    loss = 0.0
    correct = 0
    seen = 0
    for images, labels in loader:
        scores = net(images.to(device))
        labels = labels.to(device)
        loss += functional.cross_entropy(scores, labels, reduction="sum").item()
        correct += int((scores.argmax(1) == labels).sum())
        seen += len(labels)
    return loss / seen, correct / seen


def density(net):
    """Return the fraction of the weights (not the biases) that are not 0."""
    weights = [p for p in net.parameters() if p.ndim > 1]
    return sum(int((p != 0).sum()) for p in weights) / sum(p.numel() for p in weights)


@torch.no_grad()
def prune(net, fraction):
    """Set all but the largest weights to 0, those of all layers together: magnitude pruning."""
    weights = [p for p in net.parameters() if p.ndim > 1]
    size = torch.cat([p.abs().flatten() for p in weights])
    level = size.sort(descending=True).values[int(fraction * size.numel())]
    for p in weights:
        p.mul_(p.abs() > level)
