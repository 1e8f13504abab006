"""What training starts from: a family, a tokenizer, sizes, a checkpoint."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from clearhead import checkpoints
from clearhead.checkpoints import load_tokenizer, warm_start
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.data.records import Records
from clearhead.io import hub
from clearhead.io.atomic import atomic_folder
from clearhead.io.json import read_json, write_json
from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import MultilingualTokenizer, TextTokenizer
from clearhead.tokenizers.bpe import train_bpe
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.memory import check_depth, check_size
from clearhead.train.recipe.errors import did_you_mean
from clearhead.train.recipe.recipe import Recipe

F = TypeVar("F")

_FEW_TOKENS = 1000
"""Vocabulary of a model that is checked before its tokenizer is learned."""

SIZES = (
    *("d_model", "ffn_hidden", "num_heads", "num_layers", "decoder_num_layers", "max_len", "activation"),
    "initializer_range",
)


def encoder(
    recipe: Recipe, folder: Path, fields: Sequence[str], texts: Sequence[str]
) -> tuple[EncoderModel, EncoderFamily, Tokenizer]:
    """The encoder that a recipe starts from: a checkpoint's, or a new one with its tokenizer.

    Args:
        recipe: the recipe.
        folder: the run's.
        fields: what the rows of the training data have.
        texts: those of them that a tokenizer is learned from.
    """
    if recipe.model.start is not None:
        found = hub.resolve_model(recipe.model.start)
        model, family = checkpoints.load_encoder(found)
        return model, family, check_vocabulary(Tokenizer.from_folder(found), found, model.config.vocab_size)
    family = family_named(recipe.model.layout or "bert", checkpoints.ENCODER_FAMILIES)
    told = {name: value for name, value in sizes(recipe).items() if name != "decoder_num_layers"}
    check_size(family.make_config(vocab_size=_FEW_TOKENS, **told), recipe)
    found_tokenizer = tokenizer(recipe, folder, family.model_type, fields, texts)
    assert isinstance(found_tokenizer, Tokenizer)
    pad = token_id(found_tokenizer, "pad", "[PAD]")
    plan = family.make_config(vocab_size=vocabulary_size(found_tokenizer), pad_id=pad, **told)
    check_size(plan, recipe)
    return EncoderModel(plan), family, found_tokenizer


def seq2seq(recipe: Recipe, folder: Path, fields: Sequence[str]) -> tuple[Seq2Seq, Seq2SeqFamily, TextTokenizer]:
    """The encoder–decoder that a recipe starts from: a checkpoint's, half a checkpoint's, or a new one."""
    told = recipe.model
    if told.start is not None:
        found = hub.resolve_model(told.start)
        model, family = checkpoints.load_seq2seq(found)
        return model, family, _tokenizer(found, model, family)
    if told.encoder is not None or told.decoder is not None:
        return _warm(recipe)
    family = family_named(told.layout or "marian", checkpoints.SEQ2SEQ_FAMILIES)
    check_size(family.make_config(vocab_size=_FEW_TOKENS, **sizes(recipe)), recipe)
    found_tokenizer = tokenizer(recipe, folder, family.model_type, fields, fields)
    pad, eos = token_id(found_tokenizer, "pad", "<pad>"), token_id(found_tokenizer, "eos", "</s>")
    starts_from_pad = family.default_ids[2] == family.default_ids[0]
    plan = family.make_config(
        vocab_size=vocabulary_size(found_tokenizer),
        pad_id=pad,
        eos_ids=(eos,),
        start_id=pad if starts_from_pad else eos,
        **sizes(recipe),
    )
    check_size(plan, recipe)
    model = Seq2Seq(plan)
    for embedding in (model.source_embedding, model.target_embedding):
        nn.init.zeros_(embedding.tokens.weight[pad])  # as torch.nn.Embedding's padding_idx; the learner keeps it so
    return model, family, found_tokenizer


def _warm(recipe: Recipe) -> tuple[Seq2Seq, Seq2SeqFamily, TextTokenizer]:
    """A pretrained half under or over a fresh one."""
    told = recipe.model
    name = told.encoder or told.decoder
    assert name is not None
    found = hub.resolve_model(name)
    model_type = read_json(found / "config.json").get("model_type")
    depth = told.decoder_num_layers if told.encoder is not None else told.num_layers
    if told.encoder is not None and model_type in checkpoints.ENCODER_FAMILIES:
        body, of_encoder = checkpoints.load_encoder(found)
        reader = check_vocabulary(Tokenizer.from_folder(found), found, body.config.vocab_size)
        sep = token_id(reader, "sep", "[SEP]")
        check_depth(body.config, depth or 1, recipe)
        model = warm_start.seq2seq_from_encoder(
            body,
            of_encoder,
            decoder_num_layers=depth or body.config.num_layers,
            pad_id=token_id(reader, "pad", "[PAD]"),
            start_id=token_id(reader, "cls", "[CLS]"),
            eos_ids=(sep,),
        )
        return model, checkpoints.SEQ2SEQ_FAMILIES["bart"], reader
    whole, family = checkpoints.load_seq2seq(found)
    check_depth(whole.config, depth or 1, recipe)
    if told.encoder is not None:
        layers = depth or whole.config.decoder_num_layers or whole.config.num_layers
        return warm_start.reinitialize_half(whole, "decoder", layers), family, _tokenizer(found, whole, family)
    return (
        warm_start.reinitialize_half(whole, "encoder", depth or whole.config.num_layers),
        family,
        _tokenizer(found, whole, family),
    )


def _tokenizer(folder: Path, model: Seq2Seq, family: Seq2SeqFamily) -> TextTokenizer:
    """Return the tokenizer of the encoder–decoder in a folder."""
    config = model.config
    found = load_tokenizer(folder, family.model_type)
    return check_vocabulary(found, folder, config.vocab_size, config.target_vocab_size)


def tokenizer(
    recipe: Recipe, folder: Path, model_type: str, fields: Sequence[str], texts: Sequence[str]
) -> TextTokenizer:
    """The tokenizer that a recipe names, or one learned from its training texts and kept in the run's folder."""
    told = recipe.tokenizer
    if told.path is not None:
        return load_tokenizer(hub.resolve_model(told.path), model_type)
    data = recipe.data
    records = Records(data.train, fields=fields, columns=data.columns, encoding=data.encoding)
    place = folder / "data" / "tokenizer"
    wanted = {"of": records.describe(), "fields": list(texts), **told.model_dump(), "for": model_type}
    note = place / "key.json"
    if not note.is_file() or read_json(note) != json.loads(json.dumps(wanted)):
        if place.exists() and not note.is_file():
            raise ValueError(f"{place} is there already and is not of a run; remove it or give another output")
        learned = train_bpe(
            (row.values[field].strip() for row in records for field in texts),
            vocab_size=told.vocab_size,
            lowercase=told.lowercase,
            architecture="encoder" if model_type in checkpoints.ENCODER_FAMILIES else "encoder-decoder",
        )
        with atomic_folder(place) as part:
            learned.save(part, None)
            write_json(part / note.name, wanted)
    return load_tokenizer(place, model_type)


def sizes(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says of a new model's plan."""
    return {name: getattr(recipe.model, name) for name in SIZES if getattr(recipe.model, name) is not None}


def family_named(name: str, families: Mapping[str, F]) -> F:
    """The family of a layout.

    Raises:
        ValueError: there is no such family for the task.
    """
    if name not in families:
        raise ValueError(f"model.layout is {name!r}{did_you_mean(name, list(families))}")
    return families[name]


def token_id(of: TextTokenizer, role: str, default: str) -> int:
    """The id of the special token of a role.

    Raises:
        ValueError: the tokenizer has none.
    """
    assert isinstance(of, MultilingualTokenizer)
    number = of.token_id(special_tokens.special_token(of.config, role, default))
    if number is None:
        raise ValueError(f"the tokenizer has no {role} token, which training needs")
    return number


def vocabulary_size(of: TextTokenizer) -> int:
    """Return the number of embeddings that the tokenizer's ids need: the greatest id + 1."""
    assert isinstance(of, MultilingualTokenizer)
    return max(of.vocabulary().values()) + 1


def longest(*limits: int | None) -> int:
    """The least of some limits, those that there are."""
    return min(limit for limit in limits if limit is not None)


def fingerprint(of: TextTokenizer, more: object) -> str:
    """What examples depend on: a tokenizer, and whatever else."""
    assert isinstance(of, MultilingualTokenizer)
    whole = of.as_json() if isinstance(of, Tokenizer) else json.dumps(sorted(of.vocabulary().items()))
    return hashlib.sha256((whole + json.dumps(more, default=str)).encode()).hexdigest()


def check_width(name: str, recipe: Recipe, ours: int, theirs: int) -> None:
    """Whether a teacher's hidden states can be compared with this model's, where the recipe wants that.

    Raises:
        ValueError: they are of another width.
    """
    told = recipe.regularize.distillation
    if told is not None and told.hidden_weight and ours != theirs:
        raise ValueError(
            f"the teacher {name} has hidden states of {theirs} numbers, this model's have {ours}; they must be as many "
            "for regularize.distillation.hidden_weight, which may be 0"
        )


def check_alike(name: str, ours: TextTokenizer, theirs: TextTokenizer) -> None:
    """Whether a teacher counts the same tokens.

    Raises:
        ValueError: it does not.
    """
    assert isinstance(ours, MultilingualTokenizer)
    assert isinstance(theirs, MultilingualTokenizer)
    if ours.vocabulary() != theirs.vocabulary():
        raise ValueError(
            f"the teacher {name} has other tokens than this model, and their probabilities cannot be compared; start "
            f"with its tokenizer (tokenizer.path: {name})"
        )
