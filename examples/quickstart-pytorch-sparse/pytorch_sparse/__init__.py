"""A sparse convolutional network on MNIST, federated: Flower's PyTorch quickstart with another strategy."""
