"""Tokenize texts with a prompt before each of them."""

from collections.abc import Sequence

from clearhead.tokenizers.base import Tokens
from clearhead.tokenizers.tokenizer import Tokenizer


def prompted_tokens(tokenizer: Tokenizer, texts: Sequence[str], prompt: str, limit: int) -> list[Tokens]:
    """Return the tokens of texts with a prompt before each text, truncated.

    Args:
        tokenizer: the tokenizer.
        texts: the texts.
        prompt: the text of the prompt; "" for none.
        limit: maximum number of tokens of a text, including the prompt and special tokens.

    Raises:
        ValueError: the prompt leaves no room for a text, or is not valid Unicode.
    """
    if not prompt:
        return tokenizer.encode(texts, limit)
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the prompt is not valid Unicode at character {error.start}") from None
    prompt_length = len(tokenizer.encode([prompt])[0].ids)
    if prompt_length >= limit:  # all texts would get the same vector
        raise ValueError(
            f"the prompt takes {prompt_length} tokens with the special ones, and texts are truncated to {limit}: "
            "no token of a text would be left. Give a shorter prompt or a greater max_length"
        )
    return tokenizer.encode([prompt + text for text in texts], limit)


def count_prompt_tokens(tokenizer: Tokenizer, prompt: str) -> int:
    """Return the number of tokens that a prompt takes at the start of each text, with the first special ones."""
    if not prompt:
        return 0
    with_prompt, empty = tokenizer.encode([prompt, ""])
    closing = 1 if empty.ids and with_prompt.ids[-1] == empty.ids[-1] else 0
    return len(with_prompt.ids) - closing
