"""A convolutional network that is trained against one perturbation of all images, federated."""
