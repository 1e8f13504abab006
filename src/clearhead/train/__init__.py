"""Training: from a recipe to a saved model."""
