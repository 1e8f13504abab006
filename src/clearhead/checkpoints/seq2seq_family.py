"""What an encoder–decoder family is. One file a family fills this in."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.checkpoints.load import build_and_load
from clearhead.checkpoints.save import write_model
from clearhead.checkpoints.schema.config_schema import ConfigSchema
from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.io.safetensors import read_weights
from clearhead.layers.embedding import PositionalEncoding
from clearhead.models.config import Seq2SeqConfig
from clearhead.models.seq2seq import Seq2Seq

log = logging.getLogger(__name__)

SEQ2SEQ_ONLY: dict[str, Any] = {
    "is_encoder_decoder": True,
    "is_decoder": False,
    "chunk_size_feed_forward": 0,
    "add_bias_logits": False,
    "static_position_embeddings": False,
    "normalize_embedding": False,
    "normalize_before": False,
    "add_final_layer_norm": False,
}
"""Keys that change the mathematics, with the value that they have in most families."""

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
"""Keys that say how to generate. Older files have them in config.json; `generation.settings` reads them."""

_INERT = GENERATION_KEYS | {
    *("classif_dropout", "classifier_dropout", "extra_pos_embeddings", "num_hidden_layers", "save_step", "init_std"),
    *("pruned_heads", "tf_legacy_loss", "cross_attention_hidden_size", "tie_encoder_decoder"),
    *("pad_token_id", "decoder_start_token_id"),
}

_TOLD = ("pad_id", "start_id", "eos_ids", "tie_output", "share_embeddings", "target_vocab_size")
"""Parts of a plan that are told by ids, and by which tensors a file holds."""

_EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqFamily(ConfigSchema[Seq2SeqConfig]):
    """One family of encoder–decoder checkpoints.

    The tensors of embeddings and output are not in its table: which of them are one matrix is read from the file, where
    a tied one may be there once, or under each of its names.

    Args:
        table: its tensor names, for a plan.
        prefix: what stands before the names of encoder and decoder, such as "model.".
        ids: the family's pad, end and start ids, for a config.json that does not say.
        parts_vocabularies: whether source and target may have embeddings of their own though the output is tied.
        saves_positions: whether transformers wants the sinusoids in the file.
        others: as in `ConfigSchema`.
    """

    table: Callable[[Seq2SeqConfig], ParameterNames]
    prefix: str
    ids: tuple[int, int, int]
    only: Mapping[str, Any] = field(default_factory=lambda: SEQ2SEQ_ONLY)
    inert: frozenset[str] = _INERT
    parts_vocabularies: bool = False
    saves_positions: bool = False

    def plan(self, **parts: Any) -> Seq2SeqConfig:
        """The plan of a new model that this family's checkpoints can hold.

        Args:
            parts: fields of `Seq2SeqConfig`; vocab_size is needed. The others are the family's own where it has no
                choice, else its usual ones. Ids that are not given are the family's too, but lie in the vocabulary,
                and a target starts with the padding's id or the end's as the family has it.

        Raises:
            ValueError: a part that the family cannot hold, with those that can; one that is no part of a plan; an id
                outside the vocabulary.

        >>> from clearhead.checkpoints import SEQ2SEQ_FAMILIES
        >>> SEQ2SEQ_FAMILIES["bart"].plan(vocab_size=1000, d_model=256).position_offset
        2
        """
        parts = self._parts(Seq2SeqConfig, parts, *_TOLD)
        size = min(parts["vocab_size"], parts.get("target_vocab_size") or parts["vocab_size"])
        pad, eos, start = (min(number, size - 1) for number in self.ids)
        ids = {"pad_id": pad, "eos_ids": (eos,), **parts}
        follows = (ids["pad_id"],) if self.ids[2] == self.ids[0] else ids["eos_ids"]
        ids = {"start_id": next(iter(follows), start), **ids}
        config = Seq2SeqConfig(**self._fresh(Seq2SeqConfig, ids))
        self._write_config(config)  # says what of it the family cannot hold
        return config

    def _kin(self) -> Iterable[ConfigSchema[Seq2SeqConfig]]:
        from clearhead.checkpoints import SEQ2SEQ_FAMILIES  # they all import this file

        return SEQ2SEQ_FAMILIES.values()

    def load(
        self,
        folder: Path,
        data: Mapping[str, Any],
        configure: Callable[[Seq2SeqConfig], Seq2SeqConfig] = lambda config: config,
    ) -> Seq2Seq:
        """The model in a folder, in float32 and evaluation mode.

        Args:
            folder: the folder.
            data: its config.json.
            configure: changes the config before the model is built, such as its dropout rates.

        Raises:
            ValueError: tensors that are missing, unexpected or misshapen, or a config key that is not understood.
        """
        held, where = read_weights(folder)
        tensors = {name.removeprefix(self.prefix): tensor for name, tensor in held.items()}
        config_file = str(folder / "config.json")
        embeddings = _embeddings(tensors, data, where)
        told = self._ids(data, config_file) | {
            "share_embeddings": "target_embedding.tokens.weight" not in embeddings,
            "tie_output": "output.tokens.weight" not in embeddings,
        }
        config = configure(self._read(Seq2SeqConfig, data, tensors, config_file, **told))
        layers = config.num_layers + (config.decoder_num_layers or config.num_layers)
        if layers > len(tensors):
            raise ValueError(f"{where}: config.json says {layers} layers; here are {len(tensors)} tensors")
        if config.output_bias:
            size = config.target_vocab_size or config.vocab_size
            tensors.setdefault("final_logits_bias", torch.zeros(1, size))
            tensors["final_logits_bias"] = tensors["final_logits_bias"].flatten()
        table = self.table(config)
        aside = table.left_aside_in(tensors)
        if aside:
            log.info("%s: %d tensors that follow from the config were left aside: %s", where, len(aside), aside)
        tensors |= embeddings  # under our names, which stand in the table for themselves
        model = build_and_load(
            lambda: Seq2Seq(config), lambda wanted: table.to_ours(tensors, wanted, where), config_file
        )
        _check_sinusoids(model, tensors, where)
        return model

    def save(self, model: Seq2Seq, folder: Path) -> None:
        """Writes a model's weights and config.json so that transformers opens the folder.

        Raises:
            ValueError: the family has no way to say a part of the model's plan.
        """
        config = self.storable_config(model.config)
        data = self._write_config(config)
        ours = dict(model.named_parameters())  # a tensor that has two names comes once
        source = ours.pop("source_embedding.tokens.weight")
        target = ours.pop("target_embedding.tokens.weight", source)
        head = ours.pop("output.tokens.weight", None)
        foreign = self.table(config).to_foreign(ours)
        if config.share_embeddings:
            foreign["shared.weight"] = source
        if not config.share_embeddings or (head is not None and self.prefix):
            # transformers 5 ties nothing where the output is not tied: each name must be there
            foreign |= {"encoder.embed_tokens.weight": source.clone(), "decoder.embed_tokens.weight": target.clone()}
        if self.saves_positions:
            foreign |= {name: pe.clone() for name, pe in _sinusoids(model).items()}
        if "final_logits_bias" in foreign:
            foreign["final_logits_bias"] = foreign["final_logits_bias"][None]
        bare = ("final_logits_bias",)
        tensors = {name if name in bare else f"{self.prefix}{name}": tensor for name, tensor in foreign.items()}
        if head is not None:
            tensors["lm_head.weight"] = head
        write_model(folder, data, {name: tensor.detach().contiguous() for name, tensor in tensors.items()})

    def _write_config(self, plan: Seq2SeqConfig) -> dict[str, Any]:
        config = explicit(plan)
        data = self._write(config, *_TOLD)
        eos = config.eos_ids[0] if len(config.eos_ids) == 1 else list(config.eos_ids)
        data |= {"pad_token_id": config.pad_id, "eos_token_id": eos, "decoder_start_token_id": config.start_id}
        if config.target_vocab_size != config.vocab_size and not self.parts_vocabularies:
            raise ValueError(
                f"a {self.model_type} checkpoint cannot hold target_vocab_size={config.target_vocab_size} beside "
                f"vocab_size={config.vocab_size}; it has one vocabulary"
            )
        if config.tie_output and not config.share_embeddings and not self.parts_vocabularies:
            raise ValueError(
                f"a {self.model_type} checkpoint cannot hold share_embeddings=False with tie_output=True; "
                "transformers would make all three matrices one"
            )
        return data | {"is_encoder_decoder": True, "tie_word_embeddings": config.tie_output}

    def _ids(self, data: Mapping[str, Any], where: str) -> dict[str, Any]:
        pad, eos, start = self.ids
        given = {"pad_id": data.get("pad_token_id"), "start_id": data.get("decoder_start_token_id")}
        defaults = {"pad_id": pad, "start_id": start}
        ids: dict[str, Any] = {name: given[name] if given[name] is not None else defaults[name] for name in given}
        ends = data.get("eos_token_id")
        ids["eos_ids"] = (eos,) if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
        for number in (ids["pad_id"], ids["start_id"], *ids["eos_ids"]):
            if type(number) is not int or number < 0:
                raise ValueError(f"{where}: token id {number!r}; a whole number from 0 on is wanted")
        return ids


def _embeddings(tensors: dict[str, Tensor], data: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """Takes the matrices of embeddings and output out of a file's tensors; gives those that differ, under our names.

    A name that is missing is tied. One that is there with the same numbers is tied as well, unless config.json says
    that it is not: then training may move them apart.
    """
    shared, source, target, head = (tensors.pop(name, None) for name in _EMBEDDINGS)
    source = shared if source is None else source
    target = shared if target is None else target
    source = target if source is None else source
    if source is None or target is None:
        raise ValueError(f"{where}: tensor shared.weight is missing")
    found = {"source_embedding.tokens.weight": source}
    if data.get("share_encoder_decoder_embeddings") is False or not _same(source, target):
        found["target_embedding.tokens.weight"] = target
    untied = data.get("tie_word_embeddings") is False
    if untied and head is None:
        raise ValueError(
            f"{where}: tensor lm_head.weight is missing, though config.json says tie_word_embeddings=false"
        )
    if head is not None and (untied or not _same(head, target)):
        found["output.tokens.weight"] = head
    return found


def _sinusoids(model: Seq2Seq) -> dict[str, Tensor]:
    """The positions that are computed and not learned, under the names that files give them."""
    embeddings = {"encoder": model.source_embedding, "decoder": model.target_embedding}
    return {
        f"{half}.embed_positions.weight": embedding.positions.pe
        for half, embedding in embeddings.items()
        if isinstance(embedding.positions, PositionalEncoding)
    }


def _check_sinusoids(model: Seq2Seq, tensors: Mapping[str, Tensor], where: str) -> None:
    """A file may hold the sinusoids; numbers that are none would be lost."""
    for name, pe in _sinusoids(model).items():
        held = tensors.get(name)
        if held is not None and (held.shape != pe.shape or not torch.allclose(held, pe, atol=2e-3)):
            raise ValueError(f"{where}: tensor {name} does not hold the sinusoids that this family computes")


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def explicit(config: Seq2SeqConfig) -> Seq2SeqConfig:
    """The same plan with every size of the decoder said."""
    return replace(
        config,
        target_vocab_size=config.target_vocab_size or config.vocab_size,
        activation_drop_prob=config.drop_prob if config.activation_drop_prob is None else config.activation_drop_prob,
        decoder_ffn_hidden=config.decoder_ffn_hidden or config.ffn_hidden,
        decoder_num_heads=config.decoder_num_heads or config.num_heads,
        decoder_num_layers=config.decoder_num_layers or config.num_layers,
    )
