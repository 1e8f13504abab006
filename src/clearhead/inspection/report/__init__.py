"""HTML page of one run: tokens, steps, attention, probabilities and beams."""
