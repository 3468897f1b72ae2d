"""Decoders on a GPU: static buffers, and forwards captured as CUDA graphs."""
