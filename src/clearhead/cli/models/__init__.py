"""Commands on a model as a whole."""
