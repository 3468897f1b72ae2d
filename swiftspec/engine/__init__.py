"""Runs a plan on a real device: decoder, cache, sampling, processes. Never imports the simulator or the planner."""

import os

# Where torch's own kernels are held to less than AVX-512, so is oneDNN: otherwise attention over hundreds of rows in
# bf16 asks oneDNN whether the processor has AMX, and then fails for want of the AVX-512 kernel that packs for it.
if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
