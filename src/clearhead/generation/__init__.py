"""Search for target tokens: greedy search, beam search and sampling, token for token as transformers."""
