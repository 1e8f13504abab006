"""Pipelines from text to result: vectors, labels, answers, translations, summaries."""
