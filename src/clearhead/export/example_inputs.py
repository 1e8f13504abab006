"""What exported models are tried with: real texts, and a row as long as the model takes."""

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
from clearhead.pipelines.outputs import Generated
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

Batch = Mapping[str, Tensor]
Row = Sequence[int]

_ROWS = 16
"""Texts in a batch."""
_LONG, _LONG_TARGET = 512, 256
"""Tokens of the longest row, where the model takes as many: enough to show what a short text does not; a model with
windows gets twice the widest of them. A target has a score for each token of the vocabulary, and is shorter."""


@dataclass(frozen=True)
class ExampleInputs:
    """A graph with what it is tried with.

    Args:
        graph: it.
        texts: the texts, in batches of like length.
        long: a short row beside one as long as the model takes, as far as that is sensible.
    """

    graph: Graph
    texts: list[Batch]
    long: Batch

    @property
    def all(self) -> list[Batch]:
        """All batches."""
        return [*self.texts, self.long]


def of(made: Pipeline, texts: Sequence[str]) -> list[ExampleInputs]:
    """The graphs of a model, each with what it is tried with."""
    if isinstance(made, TextToText):
        return _of_seq2seq(made, texts)
    if isinstance(made, TextEncoder):
        config, tokens = made.model.config, made.tokenize(texts)
        (graph,) = graphs.of_encoder(made.model, made.settings.pooling, made.settings.normalize)
    else:
        config, tokens = made.model.encoder.config, made.tokenizer.encode(texts, made.max_length)
        (graph,) = graphs.of_head(made.model)
    rows = sorted((text.ids for text in tokens), key=len)
    batches = [_of_rows(graph, rows[start : start + _ROWS], config.pad_id) for start in range(0, len(rows), _ROWS)]
    return [ExampleInputs(graph, batches, _of_rows(graph, [rows[0], _long(rows, _longest(config))], config.pad_id))]


def greedy(made: TextToText, texts: Sequence[str]) -> list[Generated]:
    """What a model makes of texts, greedily; one of many languages is told the first."""
    target = min(made.tokenizer.languages, default=None)
    return made.generate(texts, beam_size=1, max_new_tokens=16, target_lang=target, return_details=True)


def _longest(config: EncoderConfig) -> int:
    widest = max((window for window in config.windows if window is not None), default=0)
    return min(config.max_len, max(_LONG, 2 * widest))


def _long(rows: Sequence[Row], length: int) -> Row:
    """The rows one after another, over and over."""
    return list(islice(cycle([number for row in rows for number in row]), length))


def _of_rows(graph: Graph, rows: Sequence[Row], pad: int) -> Batch:
    """A batch of an encoder; with types, the texts are a first one and a second."""
    ids, mask = _padded(rows, pad)
    batch = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in graph.inputs:
        batch["token_type_ids"] = (torch.arange(ids.shape[1]) > ids.shape[1] // 2) * mask
    return batch


def _of_seq2seq(made: TextToText, texts: Sequence[str]) -> list[ExampleInputs]:
    """The texts, and what the model makes of them greedily, of which the cached step has the last token."""
    config, before = made.model.config, made.prompts.prefix
    sources = made.tokenizer.encode([before + text for text in texts], made.max_length)
    outputs = greedy(made, texts)
    pairs = sorted(
        ((tokens.ids, [config.start_id, *output.token_ids]) for tokens, output in zip(sources, outputs, strict=True)),
        key=lambda pair: len(pair[0]),
    )
    longest = [min(config.max_len or size, size) for size in (_LONG, _LONG_TARGET)]
    source, target = (_long(rows, size) for rows, size in zip(zip(*pairs, strict=True), longest, strict=True))
    some = [pairs[start : start + _ROWS] for start in range(0, len(pairs), _ROWS)]
    batches = [_of_pairs(made, part) for part in some]
    long = _of_pairs(made, [(pairs[0][0], target), (source, pairs[0][1])])
    return [
        ExampleInputs(graph, [batch[graph.name] for batch in batches], long[graph.name])
        for graph in graphs.of_seq2seq(made.model)
    ]


def _of_pairs(made: TextToText, pairs: Sequence[tuple[Row, Row]]) -> dict[str, Batch]:
    """For each graph its inputs of some sources with their targets."""
    pad = made.model.config.pad_id
    ids, mask = _padded([source for source, _ in pairs], pad)
    targets, _ = _padded([target for _, target in pairs], pad)
    with torch.inference_mode():
        memory = made.model.encode(ids, graphs.padding(mask))
        first = {"input_ids": targets[:, :-1], "encoder_hidden_states": memory, "encoder_attention_mask": mask}
        _, *held = graphs.Decoder(made.model)(*first.values())
    past = dict(zip(graphs.past_names(made.model), held, strict=True))
    return {
        "encoder_model": {"input_ids": ids, "attention_mask": mask},
        "decoder_model": first,
        "decoder_with_past_model": {"input_ids": targets[:, -1:], "encoder_attention_mask": mask, **past},
    }


def _padded(rows: Sequence[Row], pad: int) -> tuple[Tensor, Tensor]:
    tensors = [torch.tensor(row) for row in rows]
    masks = [torch.ones_like(row) for row in tensors]
    return pad_sequence(tensors, batch_first=True, padding_value=pad), pad_sequence(masks, batch_first=True)
