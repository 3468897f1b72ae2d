"""Tenants: fine-tunes and adapters of one base model, served together.

`zoo` says which of their layers are equal and what memory they take, from the files of `directories`. `deployment`,
`queueing` and `simulation` serve chains of such blocks in simulated time, as BlockLLM does (arXiv 2404.18322);
`closed_forms` is what the simulation is held against. See docs/tenants.md.
"""
