"""`clearhead evaluate`: how good a model is on data with answers; a file for each measure."""

import typer

from clearhead.cli.evaluate.answers import answers
from clearhead.cli.evaluate.classification import classification
from clearhead.cli.evaluate.similarity import similarity
from clearhead.cli.evaluate.summarization import summarization
from clearhead.cli.evaluate.translation import translation

evaluate = typer.Typer(no_args_is_help=True, help="Measure a model on data with answers.")
for measure in (translation, summarization, classification, answers, similarity):
    evaluate.command()(measure)
