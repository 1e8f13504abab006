"""Our models in other people's formats."""
