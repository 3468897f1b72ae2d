"""BlockLLM (arXiv 2404.18322): chains of blocks that fine-tunes share, served in simulated time; see docs/studies.md.

`deployment`, `queueing` and `simulation` serve them; `closed_forms` is what the simulation is held against.
"""
