"""Vocabulary files of a family with sentencepiece models, and the ids of their pieces."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SentencePieceVocabulary:
    """Sentencepiece models of a family, and how their pieces get ids.

    Without a file of ids, they count the first tokens, then the pieces of the model except the skipped ones, then the
    last tokens.

    Args:
        tokenizer_class: the class in transformers.
        model_files: the sentencepiece model of source texts, and that of target texts if it is another.
        ids_file: the JSON file from pieces to ids; None if there is none.
        first_tokens: the tokens before the pieces.
        num_skipped: the number of pieces of the model that the first tokens replace.
        last_tokens: the tokens after the pieces.
        special_tokens: other special tokens, which count only if the vocabulary contains them.
        joins_pieces: whether decoding joins the pieces itself, as in the family's tokenizer.json, and does not use the
            sentencepiece model.
    """

    tokenizer_class: str
    model_files: tuple[str, ...]
    ids_file: str | None = None
    first_tokens: tuple[str, ...] = ()
    num_skipped: int = 0
    last_tokens: tuple[str, ...] = ()
    special_tokens: tuple[str, ...] = ("<unk>", "</s>", "<pad>")
    joins_pieces: bool = True
