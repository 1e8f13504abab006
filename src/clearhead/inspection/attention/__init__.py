"""Capture, print and plot the attention weights of a running model."""
