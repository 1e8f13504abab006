"""Initialize models and tokenizers: load them from checkpoints, or create new ones."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from clearhead import checkpoints
from clearhead.checkpoints import load_tokenizer, warm_start
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.choices import suggest
from clearhead.io import hub
from clearhead.io.folders import atomic_folder
from clearhead.io.json import read_json, write_json
from clearhead.models.config import EncoderConfig, Seq2SeqConfig
from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import MultilingualTokenizer, TextTokenizer
from clearhead.tokenizers.bpe import train_bpe
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.data.files import open_records
from clearhead.train.memory import check_depth, check_size
from clearhead.train.recipe.errors import RecipeError, named
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.regularizers import config_changes

F = TypeVar("F")
C = TypeVar("C", EncoderConfig, Seq2SeqConfig)

_MIN_VOCABULARY = 1000
"""Vocabulary size for the memory check before the tokenizer is trained."""

SIZES = (
    *("d_model", "ffn_hidden", "num_heads", "num_layers", "decoder_num_layers", "max_len", "activation"),
    "initializer_range",
)
"""Keys of the recipe's section model that are fields of the config."""


def regularized(config: C, recipe: Recipe) -> C:
    """Return a model's config with the recipe's dropout and LayerDrop rates."""
    changes: Any = config_changes(recipe.regularize)
    return replace(config, **{name: value for name, value in changes.items() if hasattr(config, name)})


def with_recipe_rates(recipe: Recipe) -> Callable[[C], C]:
    """Return the function that `regularized` applies, for the loaders of checkpoints."""
    return lambda config: regularized(config, recipe)


def initialize_encoder(
    recipe: Recipe, folder: Path, fields: Sequence[str], text_fields: Sequence[str]
) -> tuple[EncoderModel, EncoderFamily, Tokenizer]:
    """Return a recipe's encoder and tokenizer, loaded from a checkpoint or new.

    Args:
        recipe: the recipe.
        folder: folder of the run.
        fields: fields of the training data.
        text_fields: those that a new tokenizer is trained on.
    """
    if recipe.model.init_from is not None:
        checkpoint = hub.resolve_model(recipe.model.init_from)
        model, family = checkpoints.load_encoder(checkpoint, with_recipe_rates(recipe))
        tokenizer = check_vocabulary(Tokenizer.from_folder(checkpoint), checkpoint, model.config.vocab_size)
        return model, family, tokenizer
    family = get_family(recipe.model.architecture or "bert", checkpoints.ENCODER_FAMILIES)
    sizes = {name: value for name, value in model_sizes(recipe).items() if name != "decoder_num_layers"}
    with named("model"):
        smallest_config = family.make_config(vocab_size=_MIN_VOCABULARY, **sizes)
    check_size(smallest_config, recipe)
    new_tokenizer = load_or_train_tokenizer(recipe, folder, family.model_type, fields, text_fields)
    assert isinstance(new_tokenizer, Tokenizer)
    pad_id = special_token_id(new_tokenizer, "pad", "[PAD]", recipe)
    config = family.make_config(vocab_size=vocabulary_size(new_tokenizer), pad_id=pad_id, **sizes)
    check_size(config, recipe)
    return EncoderModel(regularized(config, recipe)), family, new_tokenizer


def initialize_seq2seq(
    recipe: Recipe, folder: Path, fields: Sequence[str]
) -> tuple[Seq2Seq, Seq2SeqFamily, TextTokenizer]:
    """Return a recipe's encoder–decoder and tokenizer: loaded, half loaded and half new, or new."""
    section = recipe.model
    if section.init_from is not None:
        checkpoint = hub.resolve_model(section.init_from)
        model, family = checkpoints.load_seq2seq(checkpoint, with_recipe_rates(recipe))
        return model, family, _tokenizer_of(checkpoint, model, family)
    if section.init_encoder_from is not None:
        return _with_new_decoder(recipe, section.init_encoder_from)
    if section.init_decoder_from is not None:
        return _with_new_encoder(recipe, section.init_decoder_from)
    family = get_family(section.architecture or "marian", checkpoints.SEQ2SEQ_FAMILIES)
    with named("model"):
        smallest_config = family.make_config(vocab_size=_MIN_VOCABULARY, **model_sizes(recipe))
    check_size(smallest_config, recipe)
    tokenizer = load_or_train_tokenizer(recipe, folder, family.model_type, fields, fields)
    pad_id = special_token_id(tokenizer, "pad", "<pad>", recipe)
    eos_id = special_token_id(tokenizer, "eos", "</s>", recipe)
    config = family.make_config(
        vocab_size=vocabulary_size(tokenizer),
        pad_id=pad_id,
        eos_ids=(eos_id,),
        start_id=pad_id if family.starts_with_padding else eos_id,
        **model_sizes(recipe),
    )
    check_size(config, recipe)
    model = Seq2Seq(regularized(config, recipe))
    for embedding in (model.source_embedding, model.target_embedding):
        nn.init.zeros_(embedding.tokens.weight[pad_id])  # as torch.nn.Embedding's padding_idx; training keeps it zero
    return model, family, tokenizer


def _with_new_decoder(recipe: Recipe, name: str) -> tuple[Seq2Seq, Seq2SeqFamily, TextTokenizer]:
    """Return a pretrained encoder with a new decoder."""
    checkpoint = hub.resolve_model(name)
    depth = recipe.model.decoder_num_layers
    if read_json(checkpoint / "config.json").get("model_type") not in checkpoints.ENCODER_FAMILIES:
        whole, family = checkpoints.load_seq2seq(checkpoint, with_recipe_rates(recipe))
        check_depth(whole.config, depth or 1, recipe)
        depth = depth or whole.config.decoder_num_layers or whole.config.num_layers
        model = warm_start.reinitialize_half(whole, "decoder", depth)
        return model, family, _tokenizer_of(checkpoint, whole, family)
    encoder, encoder_family = checkpoints.load_encoder(checkpoint, with_recipe_rates(recipe))
    tokenizer = check_vocabulary(Tokenizer.from_folder(checkpoint), checkpoint, encoder.config.vocab_size)
    sep_id = special_token_id(tokenizer, "sep", "[SEP]", recipe)
    check_depth(encoder.config, depth or 1, recipe)
    model = warm_start.seq2seq_from_encoder(
        encoder,
        encoder_family,
        decoder_num_layers=depth or encoder.config.num_layers,
        pad_id=special_token_id(tokenizer, "pad", "[PAD]", recipe),
        start_id=special_token_id(tokenizer, "cls", "[CLS]", recipe),
        eos_ids=(sep_id,),
    )
    return model, checkpoints.SEQ2SEQ_FAMILIES["bart"], tokenizer


def _with_new_encoder(recipe: Recipe, name: str) -> tuple[Seq2Seq, Seq2SeqFamily, TextTokenizer]:
    """Return a pretrained decoder with a new encoder."""
    checkpoint = hub.resolve_model(name)
    whole, family = checkpoints.load_seq2seq(checkpoint, with_recipe_rates(recipe))
    depth = recipe.model.num_layers
    check_depth(whole.config, depth or 1, recipe)
    model = warm_start.reinitialize_half(whole, "encoder", depth or whole.config.num_layers)
    return model, family, _tokenizer_of(checkpoint, whole, family)


def _tokenizer_of(folder: Path, model: Seq2Seq, family: Seq2SeqFamily) -> TextTokenizer:
    """Return the tokenizer of the encoder–decoder in a folder."""
    config = model.config
    tokenizer = load_tokenizer(folder, family.model_type)
    return check_vocabulary(tokenizer, folder, config.vocab_size, config.target_vocab_size)


def load_or_train_tokenizer(
    recipe: Recipe, folder: Path, model_type: str, fields: Sequence[str], text_fields: Sequence[str]
) -> TextTokenizer:
    """Return the recipe's tokenizer, or train one on the training texts and save it in the run's folder."""
    section = recipe.tokenizer
    if section.path is not None:
        return _load_complete(hub.resolve_model(section.path), model_type)
    records = open_records(recipe.data, recipe.data.train, fields)
    output = folder / "data" / "tokenizer"
    key = {"of": records.describe(), "fields": list(text_fields), **section.model_dump(), "for": model_type}
    key_file = output / "key.json"
    if not key_file.is_file() or read_json(key_file) != json.loads(json.dumps(key)):
        if output.exists() and not key_file.is_file():
            raise ValueError(f"{output} exists and was not written by a run; remove it or choose another output")
        with named("tokenizer"):
            tokenizer = train_bpe(
                (row.values[field].strip() for row in records for field in text_fields),
                vocab_size=section.vocab_size,
                lowercase=section.lowercase,
                architecture="encoder" if model_type in checkpoints.ENCODER_FAMILIES else "encoder-decoder",
            )
        with atomic_folder(output) as part:
            tokenizer.save(part, None)
            write_json(part / key_file.name, key)
    return _load_complete(output, model_type)


def _load_complete(folder: Path, model_type: str) -> TextTokenizer:
    """Return the tokenizer in a folder if its ids are those of a new embedding.

    Raises:
        ValueError: most of the ids, or one that is added to each text, have no token.
    """
    tokenizer = load_tokenizer(folder, model_type)
    assert isinstance(tokenizer, MultilingualTokenizer)
    size, num_tokens = vocabulary_size(tokenizer), len(tokenizer.vocabulary())
    if size > 2 * num_tokens + _MIN_VOCABULARY:
        raise ValueError(f"{folder}: the tokenizer has {num_tokens:,} tokens, and ids up to {size - 1:,}")
    return check_vocabulary(tokenizer, folder, size)


def model_sizes(recipe: Recipe) -> dict[str, Any]:
    """Return the config fields of a new model that a recipe sets."""
    return {name: getattr(recipe.model, name) for name in SIZES if getattr(recipe.model, name) is not None}


def get_family(name: str, families: Mapping[str, F]) -> F:
    """Return the model family of an architecture.

    Raises:
        RecipeError: the task has no such architecture.
    """
    if name not in families:
        if name in checkpoints.ENCODER_FAMILIES or name in checkpoints.SEQ2SEQ_FAMILIES:  # no misspelled bart
            available = ", ".join(families)
            raise RecipeError(f"model.architecture is {name!r}, which this task cannot train; available: {available}")
        raise RecipeError(f"model.architecture is {name!r}{suggest(name, list(families))}")
    return families[name]


def special_token_id(tokenizer: TextTokenizer, role: str, default: str, recipe: Recipe) -> int:
    """Return the id of a special token.

    Raises:
        ValueError: the tokenizer has none; the error names its folder.
    """
    assert isinstance(tokenizer, MultilingualTokenizer)
    token_id = tokenizer.token_id(special_tokens.special_token(tokenizer.config, role, default))
    if token_id is None:
        section = recipe.model
        folder = section.init_from or section.init_encoder_from or recipe.tokenizer.path
        folder = folder or str(Path(recipe.output) / "data" / "tokenizer")
        raise ValueError(f"{folder}: the tokenizer has no {role} token, which training requires")
    return token_id


def vocabulary_size(tokenizer: TextTokenizer) -> int:
    """Return the number of embeddings that the tokenizer's ids require: the largest id + 1."""
    assert isinstance(tokenizer, MultilingualTokenizer)
    return max(tokenizer.vocabulary().values()) + 1


def smallest(*limits: int | None) -> int:
    """Return the smallest of the limits that are not None."""
    return min(limit for limit in limits if limit is not None)


def fingerprint(tokenizer: TextTokenizer, settings: object) -> str:
    """Return a hash of a tokenizer and other settings that examples depend on."""
    assert isinstance(tokenizer, MultilingualTokenizer)
    vocabulary = (
        tokenizer.as_json() if isinstance(tokenizer, Tokenizer) else json.dumps(sorted(tokenizer.vocabulary().items()))
    )
    return hashlib.sha256((vocabulary + json.dumps(settings, default=str)).encode()).hexdigest()


def check_width(name: str, recipe: Recipe, student: int, teacher: int) -> None:
    """Check that a teacher has hidden states of the student's width, if the recipe compares them.

    Raises:
        ValueError: their widths differ.
    """
    settings = recipe.regularize.distillation
    if settings is not None and settings.hidden_weight and student != teacher:
        raise ValueError(
            f"the teacher {name} has hidden states of width {teacher}, this model of width {student}. "
            "regularize.distillation.hidden_weight requires equal widths; set it to 0 otherwise"
        )


def check_same_tokens(name: str, student: TextTokenizer, teacher: TextTokenizer) -> None:
    """Check that a teacher has the student's vocabulary.

    Raises:
        ValueError: the vocabularies differ.
    """
    assert isinstance(student, MultilingualTokenizer)
    assert isinstance(teacher, MultilingualTokenizer)
    if student.vocabulary() != teacher.vocabulary():
        raise ValueError(
            f"the teacher {name} has other tokens than this model, so their probabilities cannot be compared. Use the "
            f"teacher's tokenizer (tokenizer.path: {name})"
        )
