"""Decoders of the Llama family on CPUs and GPUs: weights, KV caches, forwards, sampling."""
