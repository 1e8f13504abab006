"""Request handlers, one file for each task.

To add a task, write a subclass of `Handler` with its request and response schemas, and add it to `HANDLERS`. The route,
the API document and the list of tasks of each model follow from its class attributes.
"""

from typing import Any

from clearhead.serve.handlers.answer import GeneratedAnswerHandler, SpanAnswerHandler
from clearhead.serve.handlers.base import Handler
from clearhead.serve.handlers.classify import ClassifyHandler
from clearhead.serve.handlers.embed import EmbedHandler
from clearhead.serve.handlers.rerank import RerankHandler
from clearhead.serve.handlers.search import SearchHandler
from clearhead.serve.handlers.summarize import SummarizeHandler
from clearhead.serve.handlers.translate import TranslateHandler
from clearhead.serve.handlers.view import ViewHandler

HANDLERS: tuple[type[Handler[Any, Any]], ...] = (
    EmbedHandler,
    TranslateHandler,
    SummarizeHandler,
    SpanAnswerHandler,
    GeneratedAnswerHandler,
    ClassifyHandler,
    RerankHandler,
    SearchHandler,
    ViewHandler,
)
"""All handlers, in the order of the API document. Two handlers may share a task, for different types of models."""
