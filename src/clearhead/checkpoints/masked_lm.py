"""Load, save and create masked language models: an encoder, a head, and an output tied to the embedding."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.load import ENCODER_PREFIX, build_and_load
from clearhead.checkpoints.schema.config_schema import unchanged
from clearhead.checkpoints.schema.head_schema import MaskedLMSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.io.model_folder import write_model
from clearhead.layers.embedding import TokenEmbedding
from clearhead.layers.feedforward import GATES
from clearhead.models.config import EncoderConfig
from clearhead.models.encoder import EncoderModel, init_weights
from clearhead.models.heads import MaskedLanguageModel, new_masked_lm_head

log = logging.getLogger(__name__)


def new_masked_lm(encoder: EncoderModel, family: EncoderFamily) -> MaskedLanguageModel:
    """Return a copy of an encoder with a new head for masked language modeling.

    Equation: z = LN(act(h W + b_z)), W ~ N(0, initializer_range²)
    Source: Devlin et al. 2018, "BERT", Section 3.1

    Args:
        encoder: the encoder, whose weights are copied. A pooler is dropped, because this training does not use it.
        family: the family of the encoder's checkpoint; it defines the head.

    Returns:
        The model in evaluation mode; `save_masked_lm` saves it. The head is initialized with torch's random numbers.

    Raises:
        ValueError: the family cannot store the encoder.

    >>> from clearhead import EncoderModel
    >>> from clearhead.checkpoints import ENCODER_FAMILIES, new_masked_lm
    >>> bert = ENCODER_FAMILIES["bert"]
    >>> encoder = EncoderModel(bert.make_config(vocab_size=50, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1))
    >>> new_masked_lm(encoder, bert).activation
    'gelu'
    """
    config = replace(encoder.config, pooler=False)
    # raises for values that the family cannot store
    data = family.write_config(family.storable_config(config))
    options = _head_options(family, config, data, f"{family.model_type}'s defaults")
    tensors = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    return _with_new_head(config, options, _without_pooler(tensors))


def load_masked_lm_of(
    folder: Path,
    family: EncoderFamily,
    data: Mapping[str, Any],
    configure: Callable[[EncoderConfig], EncoderConfig] = unchanged,
) -> MaskedLanguageModel:
    """Return the masked language model in a folder of a family, in float32 and evaluation mode.

    Without a head in the folder, a warning is logged and the head is initialized at random.

    Args:
        folder: the model folder.
        family: its family.
        data: the contents of its config.json.
        configure: as in `load_encoder`.

    Raises:
        ValueError: as in `EncoderFamily.load`; the head is incomplete, or its output is not tied to the embedding.
    """
    tensors, source = family.read_tensors(folder, data)
    outputs = {name for head in family.heads.values() for name, ours in head.rows.items() if ours == "out.weight"}
    has_other_head = bool(outputs & tensors.keys())
    # the form of the head that the file has
    forms = [form for form in family.masked_lm.others if not form.rows.keys().isdisjoint(tensors)]
    schema = forms[0] if forms else family.masked_lm
    head_tensors, output = _pop_head(tensors, schema, source)
    encoder_tensors = _without_pooler(family.without_prefix(tensors, source))
    config_file = str(folder / "config.json")
    config = configure(family.read_config(data, encoder_tensors, config_file))
    family.check_num_layers(config, encoder_tensors, source)
    options = _head_options(family, config, data, config_file)
    if output is not None and not options["tie_output"]:
        head_tensors[f"{family.masked_lm.decoder}.weight"] = output

    def encoder_to_ours(expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        return family.names_for(config, encoder_tensors).to_ours(encoder_tensors, expected, source)

    if not head_tensors or has_other_head:
        log.warning("%s has no head for masked language modeling; a new one is initialized at random", source)
        encoder = build_and_load(lambda: EncoderModel(config), encoder_to_ours, config_file)
        return _with_new_head(config, options, encoder.state_dict())

    def to_ours(expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        in_encoder = {name: shape for name, shape in expected.items() if name.startswith(ENCODER_PREFIX)}
        encoder = encoder_to_ours({name.removeprefix(ENCODER_PREFIX): shape for name, shape in in_encoder.items()})
        if output is not None and options["tie_output"] and not torch.equal(output, encoder["embedding.tokens.weight"]):
            raise ValueError(
                f"{source}: tensor {schema.decoder}.weight is not the token embedding; "
                "a model with an untied output is not supported"
            )
        in_head = {name: shape for name, shape in expected.items() if name not in in_encoder}
        head = ParameterNames(rows=schema.rows).to_ours(head_tensors, in_head, source)
        return {f"{ENCODER_PREFIX}{name}": tensor for name, tensor in encoder.items()} | head

    return build_and_load(lambda: MaskedLanguageModel(config, **options), to_ours, config_file)


def save_masked_lm(model: MaskedLanguageModel, family: EncoderFamily, folder: Path) -> None:
    """Write a masked language model; transformers opens the folder, and `load_encoder` loads its encoder.

    Args:
        model: the model.
        family: the family of checkpoint to write.
        folder: the model folder.

    Raises:
        ValueError: the family cannot store a field of the config, or the head.
    """
    schema, config = family.masked_lm, replace(model.encoder.config, pooler=False)
    data = family.write_config(family.storable_config(config)) | {
        "architectures": [schema.architecture],
        "tie_word_embeddings": model.output.tokens is model.encoder.embedding.tokens,
    }
    options = _options_of(model)
    keys = {
        "activation": schema.activation_key,
        "dense_bias": schema.dense_bias_key,
        "output_bias": schema.output_bias_key,
    }
    data |= {key: options[name] for name, key in keys.items() if key and key not in data}
    expected = _head_options(family, config, data, "the config of the head")
    if options != expected:
        raise ValueError(f"a {family.model_type} checkpoint cannot hold a head with {options}; it needs {expected}")
    tensors = dict(model.named_parameters())  # the tied output matrix is listed once
    in_encoder = [name for name in tensors if name.startswith(ENCODER_PREFIX)]
    encoder = {name.removeprefix(ENCODER_PREFIX): tensors.pop(name).detach() for name in in_encoder}
    foreign = family.names_for(config).to_foreign(_without_pooler(encoder))
    head = ParameterNames(rows=schema.rows).to_foreign({name: tensor.detach() for name, tensor in tensors.items()})
    write_model(folder, data, {f"{family.prefix}{name}": tensor for name, tensor in foreign.items()} | head)


def _without_pooler(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler.")}


def _pop_head(
    tensors: dict[str, Tensor], schema: MaskedLMSchema, source: str
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Remove the head from a file's tensors; return it, and the output matrix if the file has a second copy."""
    weight, bias = (tensors.pop(f"{schema.decoder}.{part}", None) for part in ("weight", "bias"))
    head = {name: tensors.pop(name) for name in schema.rows if isinstance(name, str) and name in tensors}
    if bias is not None:
        name = next(str(name) for name, ours in schema.rows.items() if ours == "output.bias")
        if not torch.equal(head.setdefault(name, bias), bias):
            raise ValueError(f"{source}: tensors {name} and {schema.decoder}.bias differ, but the model ties them")
    return head, weight


def _options_of(model: MaskedLanguageModel) -> dict[str, Any]:
    return {
        "activation": model.activation,
        "dense_bias": isinstance(model.head, nn.Identity) or model.head.dense.bias is not None,
        "output_bias": model.output.bias is not None,
        "has_transform": not isinstance(model.head, nn.Identity),
        "tie_output": model.output.tokens is model.encoder.embedding.tokens,
    }


def _head_options(family: EncoderFamily, config: EncoderConfig, data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the arguments of `MaskedLanguageModel` that follow from config.json."""
    schema = family.masked_lm
    activation = data.get(schema.activation_key or "") or schema.activation
    activation = activation or GATES.get(config.activation, config.activation)
    if activation not in ("gelu", "gelu_tanh", "relu", "silu", "tanh"):
        raise ValueError(f"{source} has {schema.activation_key}={activation!r:.80}, which is not supported. Use gelu")
    keys = {
        "dense_bias": (schema.dense_bias_key, schema.dense_bias),
        "output_bias": (schema.output_bias_key, schema.output_bias),
        "tie_output": (None if schema.tied else "tie_word_embeddings", schema.tied),
    }
    biases = {name: default if data.get(key or "") is None else data[str(key)] for name, (key, default) in keys.items()}
    if not all(isinstance(value, bool) for value in biases.values()):
        raise ValueError(f"{source} has {biases}; expected true or false")
    return {"activation": activation, "has_transform": schema.has_transform, **biases}


def _with_new_head(
    config: EncoderConfig, options: Mapping[str, Any], encoder: Mapping[str, Tensor]
) -> MaskedLanguageModel:
    tensors = {f"{ENCODER_PREFIX}{name}": tensor for name, tensor in encoder.items()}
    if options["has_transform"]:
        head = new_masked_lm_head(config, options["activation"], dense_bias=options["dense_bias"])
        tensors |= {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    if not options["tie_output"]:
        tokens = TokenEmbedding(config.vocab_size, config.embedding_width)
        init_weights(tokens, config.embedding_width, config.initializer_range)
        tensors["output.tokens.weight"] = tokens.weight.detach()
    if options["output_bias"]:
        tensors["output.bias"] = torch.zeros(config.vocab_size)
    return build_and_load(lambda: MaskedLanguageModel(config, **options), lambda expected: dict(tensors))
