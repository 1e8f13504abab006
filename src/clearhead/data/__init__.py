"""Text files and tables to rows, batches and augmented tokens."""
