"""Runs a plan on a real device: decoder, cache, sampling, processes. Never imports the simulator or the planner."""

import os

# If torch's own kernels are limited to less than AVX-512, limit oneDNN, too: otherwise bf16 attention over hundreds of
# rows asks oneDNN whether the processor has AMX, and then fails because the AVX-512 kernel that packs for AMX is
# missing.
if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
