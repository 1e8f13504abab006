"""Commands that serve, export, convert and benchmark models."""
