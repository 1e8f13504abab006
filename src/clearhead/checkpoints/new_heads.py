"""New heads on an encoder that was loaded or trained: what fine-tuning starts from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor

from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.load import build_and_load
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
    """A copy of an encoder under a new classification head, as the family's checkpoints have it.

    Equation: y = Head(pool(Encoder(Embedding(ids), M))), W ~ N(0, initializer_range²)
    Source: Devlin et al. 2018, "BERT", Section 4.1

    Args:
        encoder: whose weights the body gets. A pooler becomes the head's first map where the family has it there
            (BERT), and is left out elsewhere.
        family: the family of the encoder's checkpoint.
        labels: names of the outputs, in their order.
        problem: as in `HeadConfig`.
        drop_prob: dropout of the head.

    Returns:
        The model in evaluation mode; `family.save_with_head` writes it. The head's weights are drawn from torch's
        random numbers.

    Raises:
        ValueError: no labels, or the same one twice; an encoder that the family cannot hold.

    >>> from clearhead import EncoderModel
    >>> from clearhead.checkpoints import FAMILIES, new_classifier
    >>> bert = FAMILIES["bert"]
    >>> body = EncoderModel(bert.plan(vocab_size=50, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1))
    >>> new_classifier(body, bert, ["good", "bad"]).head_config.activation
    'tanh'
    """
    if len(set(labels)) < len(labels):
        raise ValueError(f"each label has a name of its own; got {', '.join(labels)}")
    return cast(
        EncoderClassifier, _under_new_head(encoder, family, "classification", tuple(labels), problem, drop_prob)
    )


def new_span_classifier(encoder: EncoderModel, family: EncoderFamily, *, drop_prob: float = 0.1) -> SpanClassifier:
    """A copy of an encoder under a new head for answers as spans of the text, as `new_classifier`.

    Equation: (s_i, e_i) = Head(h_i), W ~ N(0, initializer_range²)
    Source: Devlin et al. 2018, "BERT", Section 4.2

    Raises:
        ValueError: an encoder that the family cannot hold.
    """
    labels = ("start", "end")
    return cast(
        SpanClassifier, _under_new_head(encoder, family, "span", labels, "single_label_classification", drop_prob)
    )


def _under_new_head(
    encoder: EncoderModel,
    family: EncoderFamily,
    task: Task,
    labels: tuple[str, ...],
    problem: Problem,
    drop_prob: float,
) -> EncoderClassifier | SpanClassifier:
    head = family.heads[task]
    plan = HeadConfig(
        labels=labels,
        activation=head.activation,
        dense_bias=head.dense_bias,
        norm=head.norm,
        drop_prob=drop_prob,
        problem=problem,
    )
    config = replace(encoder.config, pooler=False)
    family.write_config(family.storable_config(config))  # says what of it the family cannot hold
    held = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    pooler = {name: held.pop(name) for name in list(held) if name.startswith("pooler.")}
    tensors = {f"body.{name}": tensor for name, tensor in held.items()}
    new = OutputHead(config.d_model, plan, eps=config.eps, norm_bias=config.bias)
    init_weights(new, config.d_model, config.initializer_range)
    tensors |= {f"head.{name}": tensor for name, tensor in new.state_dict().items()}
    for name, tensor in pooler.items():
        if f"{family.prefix}{name}" in head.rows:
            tensors[f"head.{head.rows[f'{family.prefix}{name}']}"] = tensor

    def ours(wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        assert wanted.keys() == tensors.keys(), "an encoder's tensors follow from its config"
        return dict(tensors)

    build = EncoderClassifier if task == "classification" else SpanClassifier
    return build_and_load(lambda: build(config, plan), ours)
