"""Find mistakes in how a model is used."""
