"""Verify that a checkpoint computes correct results."""
