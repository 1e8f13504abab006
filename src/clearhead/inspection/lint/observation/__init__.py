"""Observe one call of a model: its inputs, its outputs, its masks, and which outputs depend on which inputs."""
