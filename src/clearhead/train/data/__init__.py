"""Training data: tokenized datasets, samplers and data loaders."""
