"""Commands that encode, classify, translate, summarize and answer."""
