"""HTTP: framing, limits, middleware and responses."""
