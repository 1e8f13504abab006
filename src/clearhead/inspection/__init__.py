"""Trace, watch, lint, verify and report models from outside; models never import this package."""
