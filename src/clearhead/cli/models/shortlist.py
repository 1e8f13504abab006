"""`clearhead shortlist`: learn which target tokens may translate each source token."""

from pathlib import Path
from typing import Annotated

import typer

from clearhead.io.atomic import remove_leftovers
from clearhead.io.locks import folder_lock


def shortlist(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder. The shortlist is written into it.")],
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="File of source sentences, one per line.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File of their translations, line by line.")],
) -> None:
    """Learn which target tokens may translate each source token, for faster translation with --shortlist.

    The tokens are learned from translated sentences, with IBM Model 1. The translations can be the model's own.
    """
    from clearhead.data.records import Records
    from clearhead.generation.shortlist.learn import learn_shortlist, tokenize_pairs
    from clearhead.generation.shortlist.shortlist import FILE, write_shortlist
    from clearhead.pipelines.text_to_text import TextToText

    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the folder of a model")
    context.with_resource(folder_lock(folder))
    remove_leftovers(folder / FILE)
    model = TextToText.from_pretrained(folder, precision="float32", device="cpu", shortlist=False)
    records = Records({"source": source, "target": target}, fields=["source", "target"])
    texts = ((record.values["source"], record.values["target"]) for record in records)
    sources, targets = tokenize_pairs(texts, model.tokenizer, model.max_length)
    if not sources:
        raise ValueError(f"{source} and {target} have no pair of sentences to learn from")
    learned = learn_shortlist(sources, targets, model.model.config)
    write_shortlist(folder / FILE, learned, model.tokenizer, model.model.config)
    more = "" if next(texts, None) is None else ", the first ones; more would not fit the memory"
    translations = len(learned.tokens_T) / max(1, len(learned.starts_S) - 1)
    typer.echo(
        f"learned from {len(sources):,} pairs{more}: {translations:.1f} target tokens per source token, and "
        f"{len(learned.common_C)} for all",
        err=True,
    )
    typer.echo(f"wrote {folder / FILE}", err=True)
