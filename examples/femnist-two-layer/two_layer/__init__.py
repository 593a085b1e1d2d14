"""A network of two hidden layers, each kernel in an l1 ball, federated."""
