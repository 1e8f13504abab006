"""Complete models over token ids, built from a frozen config: Figure 1 with embeddings and heads."""
