"""Record every step of a forward pass with hooks, without changes to the model."""
