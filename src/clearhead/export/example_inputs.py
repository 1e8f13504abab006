"""Example inputs for exported graphs: real texts, and a row of the maximum length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from clearhead.export import graphs
from clearhead.export.graphs import Graph
from clearhead.models.config import EncoderConfig
from clearhead.pipelines.auto import Pipeline
from clearhead.pipelines.seq2seq.outputs import Generated
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

Batch = Mapping[str, Tensor]
Row = Sequence[int]

_ROWS = 16
"""Texts per batch."""
_LONG_SOURCE, _LONG_TARGET = 512, 256
"""Tokens of the long row, if the model accepts as many: long enough to reveal errors that short texts hide. Models with
local attention get twice their widest window. Targets are shorter: a token has one logit per vocabulary entry."""


@dataclass(frozen=True)
class ExampleInputs:
    """A graph and its example inputs.

    Args:
        graph: the graph.
        texts: batches of texts of similar length.
        long: a batch of one short row and one row of the maximum length.
    """

    graph: Graph
    texts: list[Batch]
    long: Batch

    @property
    def batches(self) -> list[Batch]:
        """All batches, the long one last."""
        return [*self.texts, self.long]


def example_inputs(pipeline: Pipeline, texts: Sequence[str]) -> list[ExampleInputs]:
    """Return the graphs of a model with example inputs for each."""
    if isinstance(pipeline, TextToText):
        return _seq2seq_inputs(pipeline, texts)
    if isinstance(pipeline, TextEncoder):
        config, tokens = pipeline.model.config, pipeline.tokenize(texts)
        (graph,) = graphs.encoder_graphs(pipeline.model, pipeline.settings.pooling, pipeline.settings.normalize)
    else:
        config, tokens = pipeline.model.encoder.config, pipeline.tokenizer.encode(texts, pipeline.max_length)
        (graph,) = graphs.head_graphs(pipeline.model)
    rows = sorted((text.ids for text in tokens), key=len)
    batches = [
        _encoder_batch(graph, rows[start : start + _ROWS], config.pad_id) for start in range(0, len(rows), _ROWS)
    ]
    return [
        ExampleInputs(
            graph, batches, _encoder_batch(graph, [rows[0], _repeat_to_length(rows, max_length(config))], config.pad_id)
        )
    ]


def generate_greedily(pipeline: TextToText, texts: Sequence[str]) -> list[Generated]:
    """Generate greedily from texts; multilingual models use the first target language."""
    target = min(pipeline.tokenizer.languages, default=None)
    return pipeline.generate(texts, beam_size=1, max_new_tokens=16, target_lang=target, return_details=True)


def max_length(config: EncoderConfig) -> int:
    """Return the length of the long row, at most the maximum length of the model."""
    widest = max((window for window in config.windows if window is not None), default=0)
    return min(config.max_len, max(_LONG_SOURCE, 2 * widest))


def _repeat_to_length(rows: Sequence[Row], length: int) -> Row:
    """Concatenate the rows repeatedly up to a length."""
    return list(islice(cycle([number for row in rows for number in row]), length))


def _encoder_batch(graph: Graph, rows: Sequence[Row], pad: int) -> Batch:
    """Return an encoder batch; if the graph takes token types, the second half of each row has type 1."""
    ids, mask = _padded(rows, pad)
    batch = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in graph.inputs:
        batch["token_type_ids"] = (torch.arange(ids.shape[1]) > ids.shape[1] // 2) * mask
    return batch


def _seq2seq_inputs(pipeline: TextToText, texts: Sequence[str]) -> list[ExampleInputs]:
    """Return example inputs for the three graphs of an encoder–decoder, with greedily generated targets."""
    config, prefix = pipeline.model.config, pipeline.prompts.prefix
    sources = pipeline.tokenizer.encode([prefix + text for text in texts], pipeline.max_length)
    outputs = generate_greedily(pipeline, texts)
    pairs = sorted(
        ((tokens.ids, [config.start_id, *output.token_ids]) for tokens, output in zip(sources, outputs, strict=True)),
        key=lambda pair: len(pair[0]),
    )
    longest = [min(config.max_len or size, size) for size in (_LONG_SOURCE, _LONG_TARGET)]
    source, target = (
        _repeat_to_length(rows, size) for rows, size in zip(zip(*pairs, strict=True), longest, strict=True)
    )
    groups = [pairs[start : start + _ROWS] for start in range(0, len(pairs), _ROWS)]
    batches = [_seq2seq_batches(pipeline, part) for part in groups]
    long = _seq2seq_batches(pipeline, [(pairs[0][0], target), (source, pairs[0][1])])
    return [
        ExampleInputs(graph, [batch[graph.name] for batch in batches], long[graph.name])
        for graph in graphs.seq2seq_graphs(pipeline.model)
    ]


def _seq2seq_batches(pipeline: TextToText, pairs: Sequence[tuple[Row, Row]]) -> dict[str, Batch]:
    """Return the inputs of each graph for pairs of source and target ids."""
    pad = pipeline.model.config.pad_id
    ids, mask = _padded([source for source, _ in pairs], pad)
    targets, _ = _padded([target for _, target in pairs], pad)
    with torch.inference_mode():
        memory = pipeline.model.encode(ids, graphs.padding(mask))
        first = {"input_ids": targets[:, :-1], "encoder_hidden_states": memory, "encoder_attention_mask": mask}
        _, *key_values = graphs.Decoder(pipeline.model)(*first.values())
    past = dict(zip(graphs.past_names(pipeline.model), key_values, strict=True))
    return {
        "encoder_model": {"input_ids": ids, "attention_mask": mask},
        "decoder_model": first,
        "decoder_with_past_model": {"input_ids": targets[:, -1:], "encoder_attention_mask": mask, **past},
    }


def _padded(rows: Sequence[Row], pad: int) -> tuple[Tensor, Tensor]:
    tensors = [torch.tensor(row) for row in rows]
    masks = [torch.ones_like(row) for row in tensors]
    return pad_sequence(tensors, batch_first=True, padding_value=pad), pad_sequence(masks, batch_first=True)
