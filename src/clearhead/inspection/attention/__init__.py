"""Attention weights of a running model, and pictures of them."""
