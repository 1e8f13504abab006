"""Convert texts to token ids and back."""
