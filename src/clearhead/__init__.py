"""Clearhead: Transformer encoders and encoder–decoders, clear, verified and fast.

Every public name is here; a module (and torch) is imported when a name of it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from clearhead._version import __version__ as __version__

if TYPE_CHECKING:
    from clearhead.equations import masks
    from clearhead.equations.attention import scaled_dot_product as scaled_dot_product
    from clearhead.equations.masks import Mask as Mask
    from clearhead.generation.config import GenerationConfig as GenerationConfig
    from clearhead.inspection.attention.capture import watch as watch
    from clearhead.inspection.lint.lint import lint as lint
    from clearhead.inspection.lint.lint_masks import lint_masks as lint_masks
    from clearhead.inspection.lint.rule import Finding as Finding
    from clearhead.inspection.report.page import Page as Page
    from clearhead.inspection.report.page import view as view
    from clearhead.inspection.trace.records import Step as Step
    from clearhead.inspection.trace.records import Trace as Trace
    from clearhead.inspection.trace.trace import trace as trace
    from clearhead.inspection.trace.trace import traced as traced
    from clearhead.inspection.verify.certificate import Certificate as Certificate
    from clearhead.inspection.verify.verify import verify as verify
    from clearhead.integrations.transformers.pipeline import pipeline as pipeline
    from clearhead.layers.attention import CrossAttention as CrossAttention
    from clearhead.layers.attention import MultiHeadAttention as MultiHeadAttention
    from clearhead.layers.cache import CrossAttentionCache as CrossAttentionCache
    from clearhead.layers.cache import DecoderCache as DecoderCache
    from clearhead.layers.cache import SelfAttentionCache as SelfAttentionCache
    from clearhead.layers.embedding import LearnedPositionalEncoding as LearnedPositionalEncoding
    from clearhead.layers.embedding import PositionalEncoding as PositionalEncoding
    from clearhead.layers.embedding import TokenEmbedding as TokenEmbedding
    from clearhead.layers.feedforward import GatedFeedForward as GatedFeedForward
    from clearhead.layers.feedforward import PositionwiseFeedForward as PositionwiseFeedForward
    from clearhead.layers.norm import LayerNorm as LayerNorm
    from clearhead.layers.norm import RMSNorm as RMSNorm
    from clearhead.layers.options import LayerOptions as LayerOptions
    from clearhead.models.config import EncoderConfig as EncoderConfig
    from clearhead.models.config import Seq2SeqConfig as Seq2SeqConfig
    from clearhead.models.encoder import EncoderModel as EncoderModel
    from clearhead.models.heads import MaskedLanguageModel as MaskedLanguageModel
    from clearhead.models.seq2seq import Seq2Seq as Seq2Seq
    from clearhead.pipelines.answering.answers import Answer as Answer
    from clearhead.pipelines.encoding.multi_vector_encoder import MultiVectorEncoder as MultiVectorEncoder
    from clearhead.pipelines.encoding.quantization import quantize_vectors as quantize_vectors
    from clearhead.pipelines.encoding.sparse_encoder import SparseEncoder as SparseEncoder
    from clearhead.pipelines.question_answerer import QuestionAnswerer as QuestionAnswerer
    from clearhead.pipelines.reranker import RankedDocument as RankedDocument
    from clearhead.pipelines.reranker import Reranker as Reranker
    from clearhead.pipelines.seq2seq.outputs import Generated as Generated
    from clearhead.pipelines.seq2seq.outputs import StreamedToken as StreamedToken
    from clearhead.pipelines.text_classifier import TextClassifier as TextClassifier
    from clearhead.pipelines.text_encoder import TextEncoder as TextEncoder
    from clearhead.pipelines.text_to_text import TextToText as TextToText
    from clearhead.retrieval.index import Index as Index
    from clearhead.retrieval.index import SearchResult as SearchResult
    from clearhead.runtime.process import tune_process as tune_process
    from clearhead.stacks.decoder import Decoder as Decoder
    from clearhead.stacks.decoder import DecoderLayer as DecoderLayer
    from clearhead.stacks.encoder import Encoder as Encoder
    from clearhead.stacks.encoder import EncoderLayer as EncoderLayer

_HOME = {
    "Answer": "pipelines.answering.answers",
    "Certificate": "inspection.verify.certificate",
    "CrossAttention": "layers.attention",
    "Decoder": "stacks.decoder",
    "DecoderCache": "layers.cache",
    "DecoderLayer": "stacks.decoder",
    "Encoder": "stacks.encoder",
    "EncoderConfig": "models.config",
    "EncoderLayer": "stacks.encoder",
    "EncoderModel": "models.encoder",
    "Finding": "inspection.lint.rule",
    "CrossAttentionCache": "layers.cache",
    "GatedFeedForward": "layers.feedforward",
    "Generated": "pipelines.seq2seq.outputs",
    "GenerationConfig": "generation.config",
    "SelfAttentionCache": "layers.cache",
    "Index": "retrieval.index",
    "LayerNorm": "layers.norm",
    "LayerOptions": "layers.options",
    "LearnedPositionalEncoding": "layers.embedding",
    "Mask": "equations.masks",
    "MaskedLanguageModel": "models.heads",
    "MultiHeadAttention": "layers.attention",
    "MultiVectorEncoder": "pipelines.encoding.multi_vector_encoder",
    "Page": "inspection.report.page",
    "PositionalEncoding": "layers.embedding",
    "PositionwiseFeedForward": "layers.feedforward",
    "QuestionAnswerer": "pipelines.question_answerer",
    "RMSNorm": "layers.norm",
    "RankedDocument": "pipelines.reranker",
    "Reranker": "pipelines.reranker",
    "SearchResult": "retrieval.index",
    "Seq2Seq": "models.seq2seq",
    "Seq2SeqConfig": "models.config",
    "SparseEncoder": "pipelines.encoding.sparse_encoder",
    "Step": "inspection.trace.records",
    "StreamedToken": "pipelines.seq2seq.outputs",
    "TextClassifier": "pipelines.text_classifier",
    "TextEncoder": "pipelines.text_encoder",
    "TextToText": "pipelines.text_to_text",
    "TokenEmbedding": "layers.embedding",
    "Trace": "inspection.trace.records",
    "lint": "inspection.lint.lint",
    "lint_masks": "inspection.lint.lint_masks",
    "pipeline": "integrations.transformers.pipeline",
    "quantize_vectors": "pipelines.encoding.quantization",
    "scaled_dot_product": "equations.attention",
    "trace": "inspection.trace.trace",
    "traced": "inspection.trace.trace",
    "tune_process": "runtime.process",
    "verify": "inspection.verify.verify",
    "view": "inspection.report.page",
    "watch": "inspection.attention.capture",
}

__all__ = ["__version__", "masks", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name == "masks":
        return importlib.import_module("clearhead.equations.masks")
    if name in _HOME:
        value = getattr(importlib.import_module(f"clearhead.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'clearhead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
