"""Put new heads on a pretrained encoder, for fine-tuning."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor

from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.load import ENCODER_PREFIX, build_and_load
from clearhead.checkpoints.schema.head_schema import Task
from clearhead.models.config import HeadConfig, Problem
from clearhead.models.encoder import EncoderModel, init_weights
from clearhead.models.heads import EncoderClassifier, OutputHead, SpanClassifier


def new_classifier(
    encoder: EncoderModel,
    family: EncoderFamily,
    labels: Sequence[str],
    problem: Problem = "single_label_classification",
    *,
    drop_prob: float = 0.1,
) -> EncoderClassifier:
    """Return a copy of an encoder with a new classification head.

    Equation: y = Head(pool(Encoder(Embedding(ids), M))), W ~ N(0, initializer_range²)
    Source: Devlin et al. 2018, "BERT", Section 4.1

    Args:
        encoder: the encoder, whose weights are copied. A pooler becomes the first layer of the head if the family
            has it there (as BERT does), and is dropped otherwise.
        family: the family of the encoder's checkpoint; it defines the head.
        labels: the names of the outputs, in order.
        problem: as in `HeadConfig`.
        drop_prob: dropout of the head.

    Returns:
        The model in evaluation mode; `family.save_with_head` saves it. The head is initialized with torch's random
        numbers.

    Raises:
        ValueError: there are no labels, a label is repeated, or the family cannot store the encoder.

    >>> from clearhead import EncoderModel
    >>> from clearhead.checkpoints import ENCODER_FAMILIES, new_classifier
    >>> bert = ENCODER_FAMILIES["bert"]
    >>> encoder = EncoderModel(bert.make_config(vocab_size=50, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1))
    >>> new_classifier(encoder, bert, ["good", "bad"]).head_config.activation
    'tanh'
    """
    if len(set(labels)) < len(labels):
        raise ValueError(f"labels must be distinct; got {', '.join(labels)}")
    head = HeadConfig(labels=tuple(labels), problem=problem, drop_prob=drop_prob)
    return cast(EncoderClassifier, _with_new_head(encoder, family, "classification", head))


def new_span_classifier(encoder: EncoderModel, family: EncoderFamily, *, drop_prob: float = 0.1) -> SpanClassifier:
    """Return a copy of an encoder with a new head for answer spans; arguments and result as in `new_classifier`.

    Equation: (s_i, e_i) = Head(h_i), W ~ N(0, initializer_range²)
    Source: Devlin et al. 2018, "BERT", Section 4.2

    Raises:
        ValueError: the family cannot store the encoder.
    """
    head = HeadConfig(labels=("start", "end"), drop_prob=drop_prob)
    return cast(SpanClassifier, _with_new_head(encoder, family, "span", head))


def _with_new_head(
    encoder: EncoderModel, family: EncoderFamily, task: Task, head_config: HeadConfig
) -> EncoderClassifier | SpanClassifier:
    schema = family.head_schema(task)
    head_config = replace(head_config, activation=schema.activation, dense_bias=schema.dense_bias, norm=schema.norm)
    config = replace(encoder.config, pooler=False)
    family.write_config(family.storable_config(config))  # raises for values that the family cannot store
    copies = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    pooler = {name: copies.pop(name) for name in list(copies) if name.startswith("pooler.")}
    tensors = {f"{ENCODER_PREFIX}{name}": tensor for name, tensor in copies.items()}
    head = OutputHead(config.d_model, head_config, eps=config.eps, norm_bias=config.layer_options.has_bias("norm"))
    init_weights(head, config.embedding_width, config.initializer_range)
    tensors |= {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    for name, tensor in pooler.items():
        (foreign,) = family.parameter_names.foreign_names(name)
        if f"{family.prefix}{foreign}" in schema.rows:
            tensors[f"head.{schema.rows[f'{family.prefix}{foreign}']}"] = tensor

    def to_ours(expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        assert expected.keys() == tensors.keys(), "an encoder's tensors follow from its config"
        return dict(tensors)

    build = EncoderClassifier if task == "classification" else SpanClassifier
    return build_and_load(lambda: build(config, head_config), to_ours)
