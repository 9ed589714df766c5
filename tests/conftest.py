"""Settings for the whole suite: one thread, and generated cases that are the same every time."""

import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile(
    "colonnade", derandomize=True, database=None, deadline=None, max_examples=20
)
settings.load_profile("colonnade")
