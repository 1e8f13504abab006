"""Clearhead: Transformer encoders and encoder–decoders, clear, verified and fast.

Every public name is here; a module (and torch) is imported when a name of it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from clearhead.equations import masks as masks
    from clearhead.equations.attention import scaled_dot_product as scaled_dot_product
    from clearhead.equations.masks import Mask as Mask
    from clearhead.generation.settings import GenerationConfig as GenerationConfig
    from clearhead.layers.attention import CrossAttention as CrossAttention
    from clearhead.layers.attention import MultiHeadAttention as MultiHeadAttention
    from clearhead.layers.cache import DecoderCache as DecoderCache
    from clearhead.layers.cache import FixedCache as FixedCache
    from clearhead.layers.cache import GrowingCache as GrowingCache
    from clearhead.layers.embedding import LearnedPositionalEncoding as LearnedPositionalEncoding
    from clearhead.layers.embedding import PositionalEncoding as PositionalEncoding
    from clearhead.layers.embedding import TokenEmbedding as TokenEmbedding
    from clearhead.layers.feedforward import GatedFeedForward as GatedFeedForward
    from clearhead.layers.feedforward import PositionwiseFeedForward as PositionwiseFeedForward
    from clearhead.layers.norm import LayerNorm as LayerNorm
    from clearhead.layers.norm import RMSNorm as RMSNorm
    from clearhead.models.config import EncoderConfig as EncoderConfig
    from clearhead.models.config import Seq2SeqConfig as Seq2SeqConfig
    from clearhead.models.encoder import EncoderModel as EncoderModel
    from clearhead.models.heads import MaskedLanguageModel as MaskedLanguageModel
    from clearhead.models.seq2seq import Seq2Seq as Seq2Seq
    from clearhead.run.answers import Answer as Answer
    from clearhead.run.answers import QuestionAnswerer as QuestionAnswerer
    from clearhead.run.encode import TextEncoder as TextEncoder
    from clearhead.run.generate import TextToText as TextToText
    from clearhead.run.outputs import Generated as Generated
    from clearhead.run.outputs import StreamedToken as StreamedToken
    from clearhead.run.tasks import TextClassifier as TextClassifier
    from clearhead.see.certificate import Certificate as Certificate
    from clearhead.see.lint import lint as lint
    from clearhead.see.lint_findings import Finding as Finding
    from clearhead.see.lint_masks import lint_masks as lint_masks
    from clearhead.see.steps import Step as Step
    from clearhead.see.steps import Trace as Trace
    from clearhead.see.trace import trace as trace
    from clearhead.see.trace import traced as traced
    from clearhead.see.verify import verify as verify
    from clearhead.see.watch import watch as watch
    from clearhead.stacks.decoder import Decoder as Decoder
    from clearhead.stacks.decoder import DecoderLayer as DecoderLayer
    from clearhead.stacks.encoder import Encoder as Encoder
    from clearhead.stacks.encoder import EncoderLayer as EncoderLayer

_HOME = {
    "Answer": "run.answers",
    "Certificate": "see.certificate",
    "CrossAttention": "layers.attention",
    "Decoder": "stacks.decoder",
    "DecoderCache": "layers.cache",
    "DecoderLayer": "stacks.decoder",
    "Encoder": "stacks.encoder",
    "EncoderConfig": "models.config",
    "EncoderLayer": "stacks.encoder",
    "EncoderModel": "models.encoder",
    "Finding": "see.lint_findings",
    "FixedCache": "layers.cache",
    "GatedFeedForward": "layers.feedforward",
    "Generated": "run.outputs",
    "GenerationConfig": "generation.settings",
    "GrowingCache": "layers.cache",
    "LayerNorm": "layers.norm",
    "LearnedPositionalEncoding": "layers.embedding",
    "Mask": "equations.masks",
    "MaskedLanguageModel": "models.heads",
    "MultiHeadAttention": "layers.attention",
    "PositionalEncoding": "layers.embedding",
    "PositionwiseFeedForward": "layers.feedforward",
    "QuestionAnswerer": "run.answers",
    "RMSNorm": "layers.norm",
    "Seq2Seq": "models.seq2seq",
    "Seq2SeqConfig": "models.config",
    "Step": "see.steps",
    "StreamedToken": "run.outputs",
    "TextClassifier": "run.tasks",
    "TextEncoder": "run.encode",
    "TextToText": "run.generate",
    "TokenEmbedding": "layers.embedding",
    "Trace": "see.steps",
    "lint": "see.lint",
    "lint_masks": "see.lint_masks",
    "scaled_dot_product": "equations.attention",
    "trace": "see.trace",
    "traced": "see.trace",
    "verify": "see.verify",
    "watch": "see.watch",
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
