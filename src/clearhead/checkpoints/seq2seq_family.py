"""Encoder–decoder family: parameter names, config.json schema and tokenizer of one kind of checkpoint."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.checkpoints.load import build_and_load
from clearhead.checkpoints.schema.config_schema import ConfigSchema, unchanged
from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.checkpoints.schema.registry import FamilyRegistry
from clearhead.checkpoints.schema.tied_embeddings import split_embeddings
from clearhead.io.model_folder import write_model
from clearhead.io.safetensors import read_weights
from clearhead.layers.embedding import PositionalEncoding
from clearhead.models.config import Seq2SeqConfig
from clearhead.models.seq2seq import Seq2Seq
from clearhead.tokenizers.auto import TokenizerFormat

log = logging.getLogger(__name__)

SEQ2SEQ_FAMILIES: FamilyRegistry["Seq2SeqFamily"] = FamilyRegistry()
"""All encoder–decoder families by model type."""

SEQ2SEQ_VALUES: dict[str, Any] = {
    "is_encoder_decoder": True,
    "is_decoder": False,
    "chunk_size_feed_forward": 0,
    "add_bias_logits": False,
    "static_position_embeddings": False,
    "normalize_embedding": False,
    "normalize_before": False,
    "add_final_layer_norm": False,
}
"""Keys that change the result of a model, with the value in most families."""

GENERATION_KEYS = frozenset(
    {
        *("max_length", "min_length", "max_new_tokens", "min_new_tokens", "early_stopping", "num_beams", "do_sample"),
        *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "bad_words_ids"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "forced_bos_token_id"),
        *("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "num_beam_groups", "diversity_penalty"),
        *("remove_invalid_values", "exponential_decay_length_penalty", "output_scores", "return_dict_in_generate"),
        *("force_bos_token_to_be_generated", "renormalize_logits"),
    }
)
"""Generation settings, which older files have in config.json; `generation.config` reads them."""

_IGNORED_KEYS = GENERATION_KEYS | {
    *("classif_dropout", "classifier_dropout", "extra_pos_embeddings", "num_hidden_layers", "save_step", "init_std"),
    *("pruned_heads", "tf_legacy_loss", "cross_attention_hidden_size", "tie_encoder_decoder"),
    *("pad_token_id", "decoder_start_token_id"),
}

_EXTRA_FIELDS = ("pad_id", "start_id", "eos_ids", "tie_output", "share_embeddings", "target_vocab_size")
"""Config fields that follow from token ids and from the tensors in a file."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqFamily(ConfigSchema[Seq2SeqConfig]):
    """One family of encoder–decoder checkpoints.

    The embeddings and the output are not in its parameter names. A file decides which of them are one matrix: a tied
    matrix may be stored once, or under each of its names.

    Args:
        parameter_names: from a config to the tensor names.
        prefix: the prefix of the names of encoder and decoder, such as "model.".
        default_ids: the pad, end and start ids if config.json has none.
        separate_vocabularies: whether source and target can have separate embeddings with a tied output.
        saves_sinusoids: whether transformers requires the sinusoidal positions in the file.
        tokenizer: the sentencepiece vocabulary and languages of the tokenizer, if it has any.
        others: as in `ConfigSchema`.
    """

    parameter_names: Callable[[Seq2SeqConfig], ParameterNames]
    prefix: str
    default_ids: tuple[int, int, int]
    allowed_values: Mapping[str, Any] = field(default_factory=lambda: SEQ2SEQ_VALUES)
    ignored_keys: frozenset[str] = _IGNORED_KEYS
    separate_vocabularies: bool = False
    saves_sinusoids: bool = False
    tokenizer: TokenizerFormat = field(default_factory=TokenizerFormat)

    @property
    def starts_with_padding(self) -> bool:
        """Whether targets start with the padding token by default, not with the end token."""
        pad_id, _, start_id = self.default_ids
        return start_id == pad_id

    def make_config(self, **values: Any) -> Seq2SeqConfig:
        """Return the config of a new model that can be saved as a checkpoint of this family.

        Args:
            values: fields of `Seq2SeqConfig`; vocab_size is required. The others default to the constants and
                default sizes of the family. Default ids are lowered to fit the vocabulary. The default start_id is
                the pad id or the end id, as in the family.

        Raises:
            ValueError: a field is unknown or cannot be stored by the family (the message names the families that can);
                an id is outside the vocabulary.

        >>> from clearhead.checkpoints import SEQ2SEQ_FAMILIES
        >>> SEQ2SEQ_FAMILIES["bart"].make_config(vocab_size=1000, d_model=256).position_offset
        2
        """
        values = self._check_fields(Seq2SeqConfig, values, *_EXTRA_FIELDS)
        size = min(values["vocab_size"], values.get("target_vocab_size") or values["vocab_size"])
        pad, eos, start = (min(number, size - 1) for number in self.default_ids)
        ids = {"pad_id": pad, "eos_ids": (eos,), **values}
        start_ids = (ids["pad_id"],) if self.starts_with_padding else ids["eos_ids"]
        ids = {"start_id": next(iter(start_ids), start), **ids}
        config = Seq2SeqConfig(**self._with_defaults(Seq2SeqConfig, ids))
        self._write_config(config)  # raises for values that the family cannot store
        return config

    def _related_families(self) -> Iterable[ConfigSchema[Seq2SeqConfig]]:
        return SEQ2SEQ_FAMILIES.values()

    def load(
        self, folder: Path, data: Mapping[str, Any], configure: Callable[[Seq2SeqConfig], Seq2SeqConfig] = unchanged
    ) -> Seq2Seq:
        """Return the model in a folder, in float32 and evaluation mode.

        Args:
            folder: the model folder.
            data: the contents of its config.json.
            configure: changes the config before the model is built, such as its dropout rates.

        Raises:
            ValueError: a tensor is missing, unexpected or misshapen, or a config key is not supported.
        """
        stored, source = read_weights(folder)
        tensors = {name.removeprefix(self.prefix): tensor for name, tensor in stored.items()}
        config_file = str(folder / "config.json")
        embeddings = split_embeddings(tensors, data, source)
        config = configure(self._read_config(data, tensors, embeddings, config_file))
        layers = config.num_layers + (config.decoder_num_layers or config.num_layers)
        if layers > len(tensors):
            raise ValueError(f"{source}: config.json has {layers} layers, but the file has only {len(tensors)} tensors")
        if config.output_bias:
            source_embedding = embeddings["source_embedding.tokens.weight"]
            rows = embeddings.get("target_embedding.tokens.weight", source_embedding).shape[:1]
            tensors.setdefault("final_logits_bias", torch.zeros(rows))  # config.json may have any size
            tensors["final_logits_bias"] = tensors["final_logits_bias"].flatten()
        names = self._named_parameter_names(config)
        ignored = names.ignored_in(tensors)
        if ignored:
            log.info("%s: ignored %d tensors that follow from the config: %s", source, len(ignored), ignored)
        tensors |= embeddings  # they have our names already
        model = build_and_load(
            lambda: Seq2Seq(config), lambda expected: names.to_ours(tensors, expected, source), config_file
        )
        _check_sinusoids(model, tensors, source)
        return model

    def save(self, model: Seq2Seq, folder: Path) -> None:
        """Write the weights and config.json of a model; transformers opens the folder.

        Raises:
            ValueError: the family cannot store a field of the config.
        """
        config = self.storable_config(model.config)
        data = self._write_config(config)
        ours = dict(model.named_parameters())  # shared parameters are listed once
        source = ours.pop("source_embedding.tokens.weight")
        target = ours.pop("target_embedding.tokens.weight", source)
        output = ours.pop("output.tokens.weight", None)
        foreign = self._named_parameter_names(config).to_foreign(ours)
        if config.share_embeddings:
            foreign["shared.weight"] = source
        if not config.share_embeddings or (output is not None and self.prefix):
            # transformers 5 ties no matrices if the output is not tied: it requires each name
            foreign |= {"encoder.embed_tokens.weight": source.clone(), "decoder.embed_tokens.weight": target.clone()}
        if self.saves_sinusoids:
            foreign |= {name: pe.clone() for name, pe in _sinusoids(model).items()}
        if "final_logits_bias" in foreign:
            foreign["final_logits_bias"] = foreign["final_logits_bias"][None]
        without_prefix = ("final_logits_bias",)
        tensors = {
            name if name in without_prefix else f"{self.prefix}{name}": tensor for name, tensor in foreign.items()
        }
        if output is not None:
            tensors["lm_head.weight"] = output
        write_model(folder, data, {name: tensor.detach().contiguous() for name, tensor in tensors.items()})

    def _named_parameter_names(self, config: Seq2SeqConfig) -> ParameterNames:
        """Return the parameter names of a config, with the family for messages."""
        return replace(self.parameter_names(config), family=self.model_type)

    def _read_config(
        self, data: Mapping[str, Any], names: Iterable[str], embeddings: Mapping[str, Tensor], source: str
    ) -> Seq2SeqConfig:
        extra = self._read_ids(data, source) | {
            "share_embeddings": "target_embedding.tokens.weight" not in embeddings,
            "tie_output": "output.tokens.weight" not in embeddings,
        }
        return self._from_json(Seq2SeqConfig, data, names, source, **extra)

    def _write_config(self, config: Seq2SeqConfig) -> dict[str, Any]:
        config = with_explicit_sizes(config)
        data = self._to_json(config, *_EXTRA_FIELDS)
        eos = config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids)
        data |= {"pad_token_id": config.pad_id, "eos_token_id": eos, "decoder_start_token_id": config.start_id}
        if config.target_vocab_size != config.vocab_size and not self.separate_vocabularies:
            raise ValueError(
                f"a {self.model_type} checkpoint cannot hold target_vocab_size={config.target_vocab_size} with "
                f"vocab_size={config.vocab_size}; it has one vocabulary"
            )
        if config.tie_output and not config.share_embeddings and not self.separate_vocabularies:
            raise ValueError(
                f"a {self.model_type} checkpoint cannot hold share_embeddings=False with tie_output=True; "
                "transformers would make all three matrices one"
            )
        return data | {"is_encoder_decoder": True, "tie_word_embeddings": config.tie_output}

    def _read_ids(self, data: Mapping[str, Any], source: str) -> dict[str, Any]:
        pad, eos, start = self.default_ids
        stored = {"pad_id": data.get("pad_token_id"), "start_id": data.get("decoder_start_token_id")}
        defaults = {"pad_id": pad, "start_id": start}
        ids: dict[str, Any] = {name: defaults[name] if value is None else value for name, value in stored.items()}
        ends = data.get("eos_token_id")
        ids["eos_ids"] = (eos,) if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
        for number in (ids["pad_id"], ids["start_id"], *ids["eos_ids"]):
            if type(number) is not int or number < 0:
                raise ValueError(f"{source}: token id {number!r:.80}; expected an integer of at least 0")
        return ids


def register_seq2seq(family: Seq2SeqFamily) -> Seq2SeqFamily:
    """Add a family to `SEQ2SEQ_FAMILIES` and return it.

    Raises:
        ValueError: a table names a config field that does not exist; another family has the same model type.
    """
    family.check_field_names(Seq2SeqConfig)
    return SEQ2SEQ_FAMILIES.register(family)


def with_explicit_sizes(config: Seq2SeqConfig) -> Seq2SeqConfig:
    """Return the config with the decoder's sizes filled in, which default to the encoder's."""
    return replace(
        config,
        target_vocab_size=config.target_vocab_size or config.vocab_size,
        activation_drop_prob=config.drop_prob if config.activation_drop_prob is None else config.activation_drop_prob,
        decoder_ffn_hidden=config.decoder_ffn_hidden or config.ffn_hidden,
        decoder_num_heads=config.decoder_num_heads or config.num_heads,
        decoder_num_layers=config.decoder_num_layers or config.num_layers,
    )


def _sinusoids(model: Seq2Seq) -> dict[str, Tensor]:
    """Return the computed positions under their names in a file."""
    embeddings = {"encoder": model.source_embedding, "decoder": model.target_embedding}
    return {
        f"{half}.embed_positions.weight": embedding.positions.pe
        for half, embedding in embeddings.items()
        if isinstance(embedding.positions, PositionalEncoding)
    }


def _check_sinusoids(model: Seq2Seq, tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse positions in a file that differ from the computed ones, which would replace them."""
    for name, pe in _sinusoids(model).items():
        stored = tensors.get(name)
        if stored is not None and (stored.shape != pe.shape or not torch.allclose(stored.float(), pe, atol=2e-3)):
            raise ValueError(f"{source}: tensor {name} does not hold the sinusoids that this family computes")
