"""Figure 1 of "Attention Is All You Need": its left half here."""
