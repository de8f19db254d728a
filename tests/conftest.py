"""Settings shared by all tests."""

import torch
from hypothesis import settings

# Laws are checked on the same examples every time; a slow machine is not a failure.
settings.register_profile("proxdasa", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("proxdasa")

# The suite runs beside other processes; small tensors gain nothing from more threads.
torch.set_num_threads(1)
