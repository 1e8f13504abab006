"""Stacks of layers: the two halves of Figure 1 of "Attention Is All You Need"."""
