"""Recipes: read, check and explain errors."""
