"""Vocabulary shortlists: the tokens that the target of a source may have."""
