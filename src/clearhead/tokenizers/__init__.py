"""Text <-> ids <-> batches."""
