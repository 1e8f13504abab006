"""Answers of a question answerer: spans of a context, or generated texts."""
