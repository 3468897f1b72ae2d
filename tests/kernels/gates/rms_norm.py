import torch

from swiftspec.kernels.rms_norm import rms_norm

for hidden in (4096, 8192):
    row = torch.ones(8, hidden, dtype=torch.bfloat16)
    rms_norm(row, row.clone(), row[0].clone(), eps=1e-5, pdl=True)
