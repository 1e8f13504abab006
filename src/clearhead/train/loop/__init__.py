"""The training loop: Lightning module, callback, checkpoints, metrics log and signals."""
