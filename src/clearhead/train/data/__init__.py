"""Training data: tokenized datasets, samplers and loaders."""
