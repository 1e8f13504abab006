"""`clearhead evaluate`: evaluate a model on a test set, with one file for each task."""

import typer

from clearhead.cli.evaluate.answers import answers
from clearhead.cli.evaluate.classification import classification
from clearhead.cli.evaluate.similarity import similarity
from clearhead.cli.evaluate.summarization import summarization
from clearhead.cli.evaluate.translation import translation

evaluate = typer.Typer(no_args_is_help=True, help="Evaluate a model on a test set.")
for command in (translation, summarization, classification, answers, similarity):
    evaluate.command()(command)
