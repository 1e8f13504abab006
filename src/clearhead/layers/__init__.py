"""Layers: the equations with weights, the boxes of Figure 1."""
