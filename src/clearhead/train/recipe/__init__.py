"""Recipes: schema, files, checks and error messages."""
