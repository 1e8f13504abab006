"""Map the config.json of a family to our configs and back: keys and their meaning, as data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from clearhead.checkpoints.schema.config_values import (
    check_field,
    check_number,
    field_types,
    foreign_activation,
    our_activation,
)
from clearhead.choices import did_you_mean

Config = TypeVar("Config")

IGNORED_KEYS = frozenset(
    {
        *("architectures", "auto_map", "dtype", "finetuning_task", "gradient_checkpointing", "id2label", "label2id"),
        *("keys_to_ignore_at_inference", "language", "languages", "max_length", "min_length", "model_max_length"),
        *("model_type", "name", "name_or_path", "num_labels", "output_attentions", "output_hidden_states"),
        *("output_past", "output_scores", "prefix", "problem_type", "return_dict", "sentence_transformers"),
        "sbert_ce_default_activation_function",
        *("task_specific_params", "tie_word_embeddings", "tokenizer_class", "torch_dtype", "torchscript"),
        *("transformers.js_config", "transformers_version", "use_bfloat16", "use_cache", "classifier_dropout"),
        *("bos_token_id", "cls_token_id", "eos_token_id", "mask_token_id", "sep_token_id", "unk_token_id"),
        # settings of a pooler that the first BERT code described but never built
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    }
)
"""Keys of a config.json that never change the result of an encoder."""


RATES = frozenset(
    {"attention_drop_prob", "activation_drop_prob", "embedding_drop_prob", "layer_drop", "decoder_layer_drop"}
)
"""Fields of a config that only affect training, other than drop_prob, which most families store."""


def unchanged(config: Config) -> Config:
    """Return a config unchanged: the default of the loaders' argument `configure`."""
    return config


@dataclass(frozen=True)
class CustomConfig(Generic[Config]):
    """Conversion of the config.json keys that a table cannot express.

    Args:
        keys: the config.json keys that `read` uses.
        fields: the config fields that `read` sets.
        read: from config.json to these fields; may raise a ValueError.
        write: from a config to these keys.
        derived_defaults: from the fields of a new config to default values that follow from other fields.
    """

    keys: frozenset[str]
    fields: frozenset[str]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Config], dict[str, Any]]
    derived_defaults: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda values: {}


@dataclass(frozen=True, kw_only=True)
class ConfigSchema(Generic[Config]):
    """Two-way table between the config.json of a family and our config.

    Args:
        model_type: the value of ``model_type`` in config.json.
        architecture: the class that transformers opens the saved folder with.
        keys: config.json key -> (config field, default of the family; None if the key is required).
        constants: config fields that have one value in all models of the family.
        allowed_values: config.json keys that change the result of the model, with the only supported value.
        ignored_keys: config.json keys of this family that do not change the result.
        optional_modules: config field -> the tensor whose presence in a file sets it, such as the pooler's.
        custom: conversion of the keys that a table cannot express.
        default_sizes: defaults of a new model that differ from those of `keys` and of the config class.
        gated: whether the activation in config.json is that of a gate.
    """

    model_type: str
    architecture: str
    keys: Mapping[str, tuple[str, Any]]
    constants: Mapping[str, Any]
    allowed_values: Mapping[str, Any]
    ignored_keys: frozenset[str] = frozenset()
    optional_modules: Mapping[str, str] = field(default_factory=dict)
    custom: CustomConfig[Config] | None = None
    default_sizes: Mapping[str, Any] = field(default_factory=dict)
    gated: bool = False

    def check_field_names(self, kind: type[Config]) -> None:
        """Check that every config field that the tables of this schema name exists.

        Args:
            kind: the config class.

        Raises:
            ValueError: a field does not exist. The message names the family and the table.
        """
        known = [part.name for part in fields(kind)]  # type: ignore[arg-type]
        tables: dict[str, Iterable[str]] = {
            "keys": [name for name, _ in self.keys.values()],
            "constants": self.constants,
            "optional_modules": self.optional_modules,
            "default_sizes": self.default_sizes,
            "custom.fields": self.custom.fields if self.custom else (),
        }
        for table, names in tables.items():
            for name in names:
                if name not in known:
                    raise ValueError(
                        f"{table} of the family {self.model_type!r} has {name!r}, but {kind.__name__} has no such "
                        f"field{did_you_mean(name, known)}"
                    )

    def _check_fields(self, kind: type[Config], values: Mapping[str, Any], *extra: str) -> dict[str, Any]:
        """Return the given fields of a new config, checked.

        Args:
            kind: the config class.
            values: the fields.
            extra: fields that a checkpoint stores outside the keys of this schema.

        Raises:
            ValueError: vocab_size is missing; a field is unknown, has the wrong type, or cannot be stored in this
                family's checkpoints.
        """
        known = [part.name for part in fields(kind)]  # type: ignore[arg-type]
        unknown = [name for name in values if name not in known]
        if unknown:
            raise ValueError(f"a {self.model_type} config has no field {unknown[0]}. Use one of: {', '.join(known)}")
        if values.get("vocab_size") is None:
            raise ValueError(f"a new {self.model_type} model needs vocab_size, the number of its tokens")
        checked = {name: check_field(kind, name, value) for name, value in values.items()}
        for name, value in checked.items():
            if not self._supports(kind, name, value, extra):
                raise ValueError(self._unsupported_value(kind, name, value, extra))
        return checked

    def _with_defaults(self, kind: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return all fields of a new config: the given values, and defaults for the others."""
        of_class = {part.name: part.default for part in fields(kind)}  # type: ignore[arg-type]
        of_family = {name: default for name, default in self.keys.values() if default is not None}
        result = {**of_class, **of_family, **self.default_sizes, **self.constants, **values}
        if self.custom is not None:
            result |= {**self.custom.derived_defaults(result), **self.constants, **values}
        return result

    def storable_config(self, config: Config) -> Config:
        """Return the config with the dropout and LayerDrop rates that the family's config.json can store.

        Rates only affect training. A rate without a key gets the value that loading the saved model gives.

        Args:
            config: the config of a trained model.
        """
        defaults: dict[str, Any] = {part.name: part.default for part in fields(config)}  # type: ignore[arg-type]
        derived = self.custom.derived_defaults(vars(config)) if self.custom else {}
        stored = {name for name, _ in self.keys.values()}
        changes = {
            name: self.constants.get(name, derived.get(name, default))
            for name, default in defaults.items()
            if name in RATES - stored or (name == "drop_prob" and name in self.constants)
        }
        return replace(config, **changes)  # type: ignore[type-var]

    def _related_families(self) -> Iterable["ConfigSchema[Config]"]:
        """Return all families with the same config class."""
        return ()

    def _supports(self, kind: type[Config], name: str, value: object, extra: Iterable[str]) -> bool:
        return bool(value == self._required_value(kind, name, value, extra))

    def _required_value(self, kind: type[Config], name: str, value: object, extra: Iterable[str]) -> object:
        """Return the only possible value of a field in this family; the given value if any is possible."""
        stored = {*extra, *self.optional_modules, *(field for field, _ in self.keys.values())}
        stored |= self.custom.fields if self.custom else set()
        if name in self.constants:
            return self.constants[name]
        return value if name in stored else kind.__dataclass_fields__[name].default  # type: ignore[attr-defined]

    def _unsupported_value(self, kind: type[Config], name: str, value: object, extra: Iterable[str]) -> str:
        others = [
            family.model_type for family in self._related_families() if family._supports(kind, name, value, extra)
        ]
        supported = f"; {_join(others)} can" if others else ""
        required = self._required_value(kind, name, value, extra)
        return f"a {self.model_type} checkpoint cannot hold {name}={value!r:.80}; it needs {required!r}{supported}"

    def _from_json(
        self, kind: type[Config], data: Mapping[str, Any], names: Iterable[str], source: str, **extra: Any
    ) -> Config:
        """Return the config that a config.json and the tensor names of a file describe.

        Args:
            kind: the config class.
            data: the contents of config.json.
            names: the tensor names.
            source: the path of config.json, for messages.
            extra: fields that are known from elsewhere.

        Raises:
            ValueError: a key is missing, or one that changes the result is not supported.
        """
        self._refuse_unknown_keys(data, source)
        values = {**self.constants, **extra}
        for key, (name, default) in self.keys.items():
            value = default if data.get(key) is None else data[key]
            if value is None:
                raise ValueError(f"{source} lacks {key}")
            if name == "activation":
                values[name] = our_activation(value, key, source, gated=self.gated)
            else:
                values[name] = check_number(value, field_types(kind, name), key, source)
        present = set(names)
        values |= {name: foreign in present for name, foreign in self.optional_modules.items()}
        try:
            if self.custom is not None:
                values |= {name: check_field(kind, name, value) for name, value in self.custom.read(data).items()}
            return kind(**values)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    def _to_json(self, config: Config, *extra: str) -> dict[str, Any]:
        """Return the config.json of a config.

        Args:
            config: the config.
            extra: fields that the caller stores.

        Raises:
            ValueError: the family cannot store a field of the config.
        """
        for part in fields(config):  # type: ignore[arg-type]
            value = getattr(config, part.name)
            if not self._supports(type(config), part.name, value, extra):
                raise ValueError(self._unsupported_value(type(config), part.name, value, extra))
        data: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        for key, (name, _) in self.keys.items():
            value = getattr(config, name)
            if value is not None:
                data[key] = foreign_activation(value, gated=self.gated) if name == "activation" else value
        data |= self.custom.write(config) if self.custom else {}
        self._refuse_unknown_keys(data, f"the config of a {self.model_type} model")
        return data

    def _refuse_unknown_keys(self, data: Mapping[str, Any], source: str) -> None:
        known = {*self.keys, *self.ignored_keys, *IGNORED_KEYS, *(self.custom.keys if self.custom else ())}
        for key, value in data.items():
            if key in self.allowed_values:
                if value not in (None, self.allowed_values[key]):
                    raise ValueError(
                        f"{source} has {key}={value!r:.200}, which changes the result of the model and is "
                        f"not supported; only {self.allowed_values[key]!r} is"
                    )
            # null and empty values set nothing; false and 0 may switch off a default
            elif key not in known and not key.startswith("_") and value not in (None, "", [], {}):
                raise ValueError(
                    f"{source} has {key}={value!r:.200}, which is unknown and may change the result of the model. "
                    "Remove the key if it does not"
                )


def _join(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)
