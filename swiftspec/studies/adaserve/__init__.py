"""AdaServe (arXiv 2501.12162): its serving experiment, simulated, and a loss at large batches with its constants."""
