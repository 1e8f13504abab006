"""One short file per checkpoint family."""
