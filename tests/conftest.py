"""What all tests share: one thread, so that runs repeat bit for bit and tests run side by side."""

import torch

torch.set_num_threads(1)
