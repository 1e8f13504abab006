"""Commands that train models and tokenizers."""
