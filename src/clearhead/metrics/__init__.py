"""How good a model is, by the field's own measures."""
