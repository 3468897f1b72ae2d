import torch

from swiftspec.kernels.keep_slots import keep_slots

# A 70B target's shard with a short verification; the longest list of slots.
for num_slots, dtype in ((8, torch.bfloat16), (64, torch.bfloat16), (256, torch.bfloat16), (256, torch.float32)):
    cache = torch.ones(1, 2, 2, 512, 128, dtype=dtype)
    slots = torch.ones(num_slots, dtype=torch.int32)
    keep_slots(cache, slots, torch.ones(1, dtype=torch.int32), pdl=True)
