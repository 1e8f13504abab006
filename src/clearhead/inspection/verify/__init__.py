"""Check that a checkpoint computes what it should."""
