"""A page that shows a real run, step by step."""
