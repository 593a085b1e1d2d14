"""What all tests share, and the examples in docstrings: those that need PyTorch run where it is installed."""

import gc

# What is imported while tests are collected stays: the collector of garbage would walk through it again and again.
gc.disable()

try:
    import torch.optim  # noqa: F401
except ImportError:
    collect_ignore = ["flwr_fco/torch", "reproduction/problems/networks.py"]


def pytest_collection_finish():
    """Spare the collector what has been imported by now, also while tests run; what they leave is little."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


def pytest_collection_modifyitems(config, items):
    """Leave out the nightly tests where `-m` does not speak of them: an expression in `addopts` would be replaced."""
    if "nightly" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
