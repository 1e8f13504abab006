"""Training with several processes."""
