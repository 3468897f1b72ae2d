"""Key/value caches of sequences and of batches."""
