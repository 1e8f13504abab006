"""Steps of an encoder–decoder pipeline: prepare the source, generate, decode the output."""
