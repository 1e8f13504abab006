"""The vectors of other systems against those of an index."""
