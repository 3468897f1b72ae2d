"""Decoders on a CPU: compiled kernels, or torch where there is no compiler."""
