"""Watches models from outside; no model imports it."""
