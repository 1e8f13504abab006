"""Evaluation metrics: BLEU, chrF, ROUGE, exact match and F1, accuracy, correlation."""
