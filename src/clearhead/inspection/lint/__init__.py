"""Find masking and padding mistakes in the use of a model."""
