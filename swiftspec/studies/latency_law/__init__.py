"""Interpretable model of latency under load: two numbers per policy, its parts, and when speculation pays.

Mean end-to-end latency at a rate of RPS requests per second is L = C1 / (1 - RPS C2): Kong et al., An Interpretable
Latency Model for Speculative Decoding in LLM Serving, arXiv 2605.15051. `law` has it, and the queue that it is the mean
of; `coverage` its term for sparse models; `speculation` its parts and comparisons; `fitting` fits it to a sweep of
rates, and `rounds` derives it from how long rounds take. `sweeping` serves the same requests at rising rates, simulated
or measured, and fits it to them.
"""
