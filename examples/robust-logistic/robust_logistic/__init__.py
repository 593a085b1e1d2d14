"""A classifier of handwritten digits that withstands one perturbation of all of them, federated."""
