"""From a source to target tokens: greedily, by beams, by drawing; token for token what transformers finds."""
