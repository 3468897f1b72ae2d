import torch

from swiftspec.kernels.verification_walk import verification_walk

for num_rows in (8, 64):
    row = torch.ones(num_rows, dtype=torch.int32)
    verification_walk(row, row, row, pdl=True)
