"""The text pipelines of transformers 4, with its arguments and results, without transformers."""
