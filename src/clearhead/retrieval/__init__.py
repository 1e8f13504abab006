"""Search: an index of texts and their vectors on disk, and the model that made it."""
