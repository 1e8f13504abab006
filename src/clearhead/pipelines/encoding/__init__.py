"""What a text encoder does around the model: keywords of its calls, prompts, comparison of vectors."""
