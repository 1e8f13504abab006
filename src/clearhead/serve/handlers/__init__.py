"""What models are used for, a class each."""
