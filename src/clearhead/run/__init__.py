"""Models on text, fast."""
