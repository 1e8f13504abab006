"""Files: atomic writes, locks, JSON, safetensors and the Hugging Face Hub."""
