"""Masked language models in folders: an encoder, its head for hidden tokens, and an output tied to its embedding."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.load import build_and_load
from clearhead.checkpoints.save import write_model
from clearhead.checkpoints.schema.head_schema import MaskedFormat
from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.io.safetensors import read_weights
from clearhead.models.config import EncoderConfig
from clearhead.models.encoder import EncoderModel, init_weights
from clearhead.models.heads import MaskedLanguageModel, MaskedLMHead

_BODY = "body."

log = logging.getLogger(__name__)


def new_masked_lm(encoder: EncoderModel, family: EncoderFamily) -> MaskedLanguageModel:
    """A copy of an encoder under a new head for hidden tokens, as the family's checkpoints have it.

    Equation: z = LN(act(h W + b_z)), W ~ N(0, initializer_range²)
    Source: Devlin et al. 2018, "BERT", Section 3.1

    Args:
        encoder: whose weights the body gets; a pooler, which this training does not reach, is left out.
        family: the family of the encoder's checkpoint.

    Returns:
        The model in evaluation mode; `save_masked_lm` writes it. The head is drawn from torch's random numbers.

    Raises:
        ValueError: an encoder that the family cannot hold.

    >>> from clearhead import EncoderModel
    >>> from clearhead.checkpoints import FAMILIES, new_masked_lm
    >>> bert = FAMILIES["bert"]
    >>> body = EncoderModel(bert.plan(vocab_size=50, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1))
    >>> new_masked_lm(body, bert).activation
    'gelu'
    """
    config = replace(encoder.config, pooler=False)
    family.write_config(family.storable_config(config))  # says what of it the family cannot hold
    how = _how(family, config, {}, f"{family.model_type}'s defaults")
    body = {name: tensor.clone() for name, tensor in encoder.state_dict().items() if not name.startswith("pooler.")}
    return _with_drawn_head(config, how, body)


def load_masked_lm_of(
    folder: Path,
    family: EncoderFamily,
    data: Mapping[str, Any],
    configure: Callable[[EncoderConfig], EncoderConfig] = lambda config: config,
) -> MaskedLanguageModel:
    """The masked language model in a family's folder, in float32 and evaluation mode; see `load_masked_lm`.

    Raises:
        ValueError: as in `EncoderFamily.load`; a head of which a part is missing; an output that is not the embedding.
    """
    tensors, where = read_weights(folder)
    others = {name for head in family.heads.values() for name, ours in head.rows.items() if ours == "out.weight"}
    of_another_task = bool(others & tensors.keys())
    held, output = _head_in(tensors, family.masked, where)
    body = family.body_of(tensors, where)
    body = {name: tensor for name, tensor in body.items() if not name.startswith("pooler.")}
    config_file = str(folder / "config.json")
    config = configure(family.read_config(data, body, config_file))
    family.check_layers(config, body, where)
    how = _how(family, config, data, config_file)

    def of_body(wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        return family.table.to_ours(body, wanted, where)

    if not held or of_another_task:
        log.warning("%s holds no head for hidden tokens: a new one is drawn", where)
        return _with_drawn_head(
            config, how, build_and_load(lambda: EncoderModel(config), of_body, config_file).state_dict()
        )

    def ours(wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        inside = {name: shape for name, shape in wanted.items() if name.startswith(_BODY)}
        found = of_body({name.removeprefix(_BODY): shape for name, shape in inside.items()})
        if output is not None and not torch.equal(output, found["embedding.tokens.weight"]):
            raise ValueError(
                f"{where}: tensor {family.masked.decoder}.weight is not the token embedding; "
                "a model whose output has a matrix of its own is not supported"
            )
        head = {name: shape for name, shape in wanted.items() if name not in inside}
        rows = ParameterNames(rows=family.masked.rows)
        return {f"{_BODY}{name}": tensor for name, tensor in found.items()} | rows.to_ours(held, head, where)

    return build_and_load(lambda: MaskedLanguageModel(config, **how), ours, config_file)


def save_masked_lm(model: MaskedLanguageModel, family: EncoderFamily, folder: Path) -> None:
    """Writes a masked language model so that transformers opens the folder, and `load_encoder` its encoder.

    Raises:
        ValueError: the family has no way to say a part of the model's plan, or of its head.
    """
    form, config = family.masked, family.storable_config(replace(model.body.config, pooler=False))
    data = family.write_config(config) | {"architectures": [form.architecture], "tie_word_embeddings": True}
    has = _has(model)
    keys = {
        "activation": form.activation_key,
        "dense_bias": form.dense_bias_key,
        "output_bias": form.output_bias_key,
    }
    data |= {key: has[name] for name, key in keys.items() if key}
    wanted = _how(family, config, data, "the head's plan")
    if has != wanted:
        raise ValueError(f"a {family.model_type} checkpoint cannot hold a head with {has}; it needs {wanted}")
    held = dict(model.named_parameters())  # the output's matrix, which is the embedding, comes once
    inside = {name.removeprefix(_BODY): held.pop(name).detach() for name in list(held) if name.startswith(_BODY)}
    body = family.table.to_foreign({name: part for name, part in inside.items() if not name.startswith("pooler.")})
    head = ParameterNames(rows=form.rows).to_foreign({name: tensor.detach() for name, tensor in held.items()})
    write_model(folder, data, {f"{family.prefix}{name}": tensor for name, tensor in body.items()} | head)


def _head_in(tensors: dict[str, Tensor], form: MaskedFormat, where: str) -> tuple[dict[str, Tensor], Tensor | None]:
    """Takes the head out of a file's tensors, and the output's matrix, if the file holds it again."""
    weight, bias = (tensors.pop(f"{form.decoder}.{part}", None) for part in ("weight", "bias"))
    held = {name: tensors.pop(name) for name in form.rows if isinstance(name, str) and name in tensors}
    if bias is not None:
        name = next(str(name) for name, ours in form.rows.items() if ours == "output.bias")
        if not torch.equal(held.setdefault(name, bias), bias):
            raise ValueError(f"{where}: tensors {name} and {form.decoder}.bias differ; they are one in this model")
    return held, weight


def _has(model: MaskedLanguageModel) -> dict[str, Any]:
    return {
        "activation": model.activation,
        "dense_bias": model.head.dense.bias is not None,
        "output_bias": model.output.bias is not None,
    }


def _how(family: EncoderFamily, config: EncoderConfig, data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a config.json says of the head: `MaskedLanguageModel`'s arguments."""
    form = family.masked
    activation = data.get(form.activation_key or "") or form.activation or config.activation
    if activation not in ("gelu", "gelu_tanh", "relu", "silu", "tanh"):
        raise ValueError(f"{where} says {form.activation_key}={activation!r}, which is not supported; gelu is")
    biases = {"dense_bias": (form.dense_bias_key, form.dense_bias), "output_bias": (form.output_bias_key, True)}
    how = {name: default if data.get(key or "") is None else data[str(key)] for name, (key, default) in biases.items()}
    if not all(isinstance(value, bool) for value in how.values()):
        raise ValueError(f"{where} says {how}; true or false is wanted")
    return {"activation": activation, **how}


def _with_drawn_head(config: EncoderConfig, how: Mapping[str, Any], body: Mapping[str, Tensor]) -> MaskedLanguageModel:
    head = MaskedLMHead(
        config.d_model, how["activation"], dense_bias=how["dense_bias"], eps=config.eps, norm_bias=config.bias
    )
    init_weights(head, config.d_model, config.initializer_range)
    tensors = {f"{_BODY}{name}": tensor for name, tensor in body.items()}
    tensors |= {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    if how["output_bias"]:
        tensors["output.bias"] = torch.zeros(config.vocab_size)
    return build_and_load(lambda: MaskedLanguageModel(config, **how), lambda wanted: dict(tensors))
