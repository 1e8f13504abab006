"""Commands that read text."""
