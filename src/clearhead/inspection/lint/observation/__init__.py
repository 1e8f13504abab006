"""Observe one call of a model: inputs, outputs, masks, and the dependence of outputs on inputs."""
