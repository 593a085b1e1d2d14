"""One thread: on networks as small as these, threads wait for each other most of the time."""

try:
    import torch.optim

    torch.set_num_threads(1)
except ImportError:  # every test says so
    pass
