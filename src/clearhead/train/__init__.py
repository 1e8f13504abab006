"""Training: a recipe in, a model folder out."""
