"""Encoder family: parameter names, config.json schema, heads and tokenizer of one kind of checkpoint."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_args

from torch import Tensor

from clearhead.checkpoints.load import ENCODER_PREFIX, build_and_load
from clearhead.checkpoints.schema.config_schema import ConfigSchema, unchanged
from clearhead.checkpoints.schema.head_schema import HeadSchema, MaskedLMSchema, Task
from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.checkpoints.schema.registry import FamilyRegistry
from clearhead.io.model_folder import write_model
from clearhead.io.safetensors import read_weights
from clearhead.models.config import EncoderConfig, HeadConfig, HeadPooling, Problem
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, SpanClassifier
from clearhead.models.labels import check_labels
from clearhead.tokenizers.auto import TokenizerFormat

log = logging.getLogger(__name__)

_HEAD_DROP_PROB = 0.1
"""Dropout of a classification head whose config.json has no classifier_dropout."""

MergeAdapter = Callable[[dict[str, Tensor], Path, Mapping[str, Any], str | None], dict[str, Tensor]]
"""From the tensors of a file, its folder, its config.json and the name of an adapter to the merged tensors."""

_PURPOSES: Mapping[Task, str] = {"classification": "classification", "span": "question answering"}

ENCODER_FAMILIES: FamilyRegistry["EncoderFamily"] = FamilyRegistry()
"""All encoder families by model type."""

ENCODER_VALUES = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "position_embedding_type": "absolute",
}
"""Keys that change the result of a model, with the value that an encoder has."""


@dataclass(frozen=True, kw_only=True)
class EncoderFamily(ConfigSchema[EncoderConfig]):
    """One family of encoder checkpoints.

    Args:
        parameter_names: the tensor names of the encoder.
        other_names: its tensor names in other files; the table with the most names of a file is used.
        prefix: the prefix of these names in a model with a head, such as "bert.".
        heads: the classification and span heads.
        masked_lm: the head for masked language modeling.
        head_pooling_key: the config.json key with the pooling of a classifier; None for the first token.
        head_poolings: its values -> our poolings; the first one is the default.
        other_prefixes: prefixes that other files have instead.
        also_reads: keys of a config.json of this family with another model_type, and their values.
        translate: from a config.json of the family's first code to the keys of this table.
        adapters: merges a low-rank adapter into the tensors of a file; None for a family without adapters.
        in_transformers: whether transformers has the architecture.
        head_drop_key: the config.json key with the dropout of a classifier.
        tokenizer: the sentencepiece vocabulary and languages of the tokenizer, if it has any.
        others: as in `ConfigSchema`.
    """

    parameter_names: ParameterNames
    prefix: str
    masked_lm: MaskedLMSchema
    other_names: Sequence[ParameterNames] = ()
    other_prefixes: Sequence[str] = ()
    also_reads: Mapping[str, Any] = field(default_factory=dict)
    translate: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda data: data
    adapters: MergeAdapter | None = None
    in_transformers: bool = True
    allowed_values: Mapping[str, Any] = field(default_factory=lambda: ENCODER_VALUES)
    heads: Mapping[Task, HeadSchema] = field(default_factory=dict)
    head_pooling_key: str | None = None
    head_poolings: Mapping[str, HeadPooling] = field(default_factory=lambda: {"cls": "cls", "mean": "mean"})
    head_drop_key: str = "classifier_dropout"
    tokenizer: TokenizerFormat = field(default_factory=TokenizerFormat)

    def make_config(self, **values: Any) -> EncoderConfig:
        """Return the config of a new model that can be saved as a checkpoint of this family.

        Args:
            values: fields of `EncoderConfig`; vocab_size is required. The others default to the constants and
                default sizes of the family. A default pad_id is lowered to fit the vocabulary.

        Raises:
            ValueError: a field is unknown or cannot be stored by the family (the message names the families that can);
                an id is outside the vocabulary.

        >>> from clearhead.checkpoints import ENCODER_FAMILIES
        >>> ENCODER_FAMILIES["bert"].make_config(vocab_size=1000, num_layers=6).d_model
        768
        """
        values = self._check_fields(EncoderConfig, values)
        complete = self._with_defaults(EncoderConfig, values)
        pad_id = values.get("pad_id", min(complete["pad_id"], values["vocab_size"] - 1))
        config = EncoderConfig(**complete | {"pad_id": pad_id})
        self.write_config(config)  # raises for values that the family cannot store
        return config

    def _related_families(self) -> Iterable[ConfigSchema[EncoderConfig]]:
        return ENCODER_FAMILIES.values()

    def read_config(self, data: Mapping[str, Any], names: Iterable[str], source: str) -> EncoderConfig:
        """Return the config that a config.json and the tensor names of a file describe.

        Args:
            data: the contents of config.json.
            names: the tensor names.
            source: the path of config.json, for messages.

        Raises:
            ValueError: a key is missing, or one that changes the result is not supported.
        """
        try:
            keys = self.translate(data)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        return self._from_json(EncoderConfig, keys, names, source)

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """Return the config.json of a config.

        Raises:
            ValueError: the family cannot store a field of the config.
        """
        if config.embedding_dim is None and any(name == "embedding_dim" for name, _ in self.keys.values()):
            config = replace(config, embedding_dim=config.d_model)  # without the key, loading would use its default
        return self._to_json(config)

    def load(
        self,
        folder: Path,
        data: Mapping[str, Any],
        configure: Callable[[EncoderConfig], EncoderConfig] = unchanged,
        adapter: str | None = None,
    ) -> EncoderModel:
        """Return the encoder in a folder, in float32 and evaluation mode.

        Args:
            folder: the model folder.
            data: the contents of its config.json.
            configure: changes the config before the model is built, such as its dropout rates.
            adapter: the name of a low-rank adapter of the folder to merge into the weights; None for none.

        Raises:
            ValueError: a tensor is missing, unexpected or misshapen, or a config key or an adapter is not supported.
        """
        tensors, source = self.read_tensors(folder, data, adapter)
        tensors = self.without_prefix(tensors, source)
        config = configure(self._checked_config(folder, data, tensors, source))
        names = self.names_for(config, tensors)
        ignored = names.ignored_in(tensors)
        if ignored:
            log.info("%s: ignored %d tensors that encoding does not use: %s", source, len(ignored), ignored)
        return build_and_load(
            lambda: EncoderModel(config),
            lambda expected: names.to_ours(tensors, expected, source),
            str(folder / "config.json"),
        )

    def load_with_head(
        self,
        folder: Path,
        data: Mapping[str, Any],
        task: Task,
        configure: Callable[[EncoderConfig], EncoderConfig] = unchanged,
        drop_prob: float | None = None,
    ) -> EncoderClassifier | SpanClassifier:
        """Return the encoder in a folder with its head for a task, in float32 and evaluation mode.

        Args:
            folder: the model folder.
            data: the contents of its config.json.
            task: "classification" or "span".
            configure: as in `load`.
            drop_prob: dropout of the head instead of the saved rate.

        Raises:
            ValueError: as in `load`; or the folder has no head for the task.
        """
        tensors, source = self.read_tensors(folder, data)
        schema = self.head_schema(task)
        head_tensors = {name: tensors.pop(name) for name in schema.rows if isinstance(name, str) and name in tensors}
        output = next(str(name) for name, ours in schema.rows.items() if ours == "out.weight")
        if output not in head_tensors:
            raise ValueError(f"{source} has no {output}; {_PURPOSES[task]} needs the head of a {schema.architecture}")
        if head_tensors[output].ndim != 2 or not len(head_tensors[output]):
            shape = tuple(head_tensors[output].shape)
            raise ValueError(f"{source}: tensor {output} has the shape {shape}; expected a row for each label")
        encoder_tensors = self.without_prefix(tensors, source)
        config = configure(self._checked_config(folder, data, encoder_tensors, source))
        config_file = str(folder / "config.json")
        head_config = self._head_config(schema, data, head_tensors[output].shape[0], task, config_file)
        if drop_prob is not None:
            head_config = replace(head_config, drop_prob=drop_prob)
        head_names = ParameterNames(rows=schema.rows)

        def to_ours(expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
            head = head_names.to_ours(head_tensors, _remove_prefix("head.", expected), source)
            names = self.names_for(config, encoder_tensors)
            in_encoder = _remove_prefix(ENCODER_PREFIX, expected)
            encoder = names.to_ours(encoder_tensors, in_encoder, source)
            return _add_prefix("head.", head) | _add_prefix(ENCODER_PREFIX, encoder)

        build = EncoderClassifier if task == "classification" else SpanClassifier
        return build_and_load(lambda: build(config, head_config), to_ours, config_file)

    def save(self, model: EncoderModel, folder: Path) -> None:
        """Write the weights and config.json of an encoder; transformers opens the folder."""
        config = self.storable_config(model.config)
        write_model(folder, self.write_config(config), self.names_for(config).to_foreign(model.state_dict()))

    def save_with_head(
        self, model: EncoderClassifier | SpanClassifier, folder: Path, keys: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Write the weights and config.json of an encoder with its head; transformers opens the folder.

        Args:
            model: the model.
            folder: the output folder.
            keys: more keys of config.json.
        """
        task: Task = "classification" if isinstance(model, EncoderClassifier) else "span"
        schema, head_config = self.head_schema(task), model.head_config
        data = self.write_config(self.storable_config(model.encoder.config)) | {"architectures": [schema.architecture]}
        data["id2label"] = {str(number): label for number, label in enumerate(head_config.labels)}
        data["label2id"] = {label: number for number, label in enumerate(head_config.labels)}
        if task == "classification":
            if len(head_config.labels) > 1 or head_config.problem != "single_label_classification":
                data["problem_type"] = head_config.problem  # transformers rejects this value for one output
            if head_config.drop_prob != _HEAD_DROP_PROB:
                data[self.head_drop_key] = head_config.drop_prob
        keys_of_head = {schema.activation_key: head_config.activation, schema.bias_key: head_config.dense_bias}
        data |= {key: value for key, value in keys_of_head.items() if key}
        if self.head_pooling_key:
            data[self.head_pooling_key] = self._foreign_pooling(head_config.pooling)
        foreign = self.names_for(model.encoder.config).to_foreign(model.encoder.state_dict())
        encoder = _add_prefix(self.prefix, foreign)
        data |= keys
        write_model(folder, data, encoder | ParameterNames(rows=schema.rows).to_foreign(model.head.state_dict()))

    def read_tensors(
        self, folder: Path, data: Mapping[str, Any], adapter: str | None = None
    ) -> tuple[dict[str, Tensor], str]:
        """Return the tensors of a folder, with an adapter merged, and the path of their file.

        Raises:
            ValueError: the file is missing or broken; the folder has no such adapter.
        """
        tensors, source = read_weights(folder)
        for prefix in self.other_prefixes:
            tensors = {
                self.prefix + name.removeprefix(prefix) if name.startswith(prefix) else name: tensor
                for name, tensor in tensors.items()
            }
        if self.adapters is not None:
            return self.adapters(tensors, folder, data, adapter), source
        if adapter is not None:
            raise ValueError(f"{folder} has no adapter {adapter!r}: a {self.model_type} model has no adapters")
        return tensors, source

    def without_prefix(self, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
        """Return the tensors of a file under their names in an encoder without a head.

        Raises:
            ValueError: the file has a tensor with and without the prefix.
        """
        encoder: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            short = name.removeprefix(self.prefix)
            if short in encoder:
                raise ValueError(f"{source} has tensor {short} twice, with and without the prefix {self.prefix!r}")
            encoder[short] = tensor
        return encoder

    def head_schema(self, task: Task) -> HeadSchema:
        """Return the names and options of the head for a task.

        Raises:
            ValueError: the family has no such head.
        """
        if task not in self.heads:
            others = [family.model_type for family in ENCODER_FAMILIES.values() if task in family.heads]
            raise ValueError(
                f"a {self.model_type} checkpoint has no head for {_PURPOSES[task]}. Use one of: {', '.join(others)}"
            )
        return self.heads[task]

    def names_for(self, config: EncoderConfig, tensors: Iterable[str] = ()) -> ParameterNames:
        """Return the tensor names of the encoder, for its groups of layers and its heads that share keys and values.

        Args:
            config: the config of the encoder.
            tensors: the names in the file to read; none to write.
        """
        present = list(tensors)
        names = max((self.parameter_names, *self.other_names), key=lambda names: names.count_in(present))
        if config.layer_groups is not None:
            names = replace(names, group_layers=config.group_layers)
        shared = config.num_kv_heads
        if shared is None or shared == config.num_heads:
            return names
        rows = (f"encoder.layers.{{}}.attention.qkv.{part}" for part in ("weight", "bias"))
        return replace(names, shares=dict.fromkeys(rows, (config.num_heads, shared, shared)))

    def check_num_layers(self, config: EncoderConfig, tensors: Mapping[str, Tensor], source: str) -> None:
        """Raise a ValueError for more layers than tensors, before a model of a million layers is built."""
        layers = config.num_layers if config.layer_groups is None else config.layer_groups * config.group_layers
        if layers > len(tensors):
            raise ValueError(f"{source}: config.json has {layers} layers, but the file has only {len(tensors)} tensors")

    def _checked_config(
        self, folder: Path, data: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str
    ) -> EncoderConfig:
        config = self.read_config(data, tensors, str(folder / "config.json"))
        self.check_num_layers(config, tensors, source)
        return config

    def _head_config(
        self, schema: HeadSchema, data: Mapping[str, Any], outputs: int, task: Task, source: str
    ) -> HeadConfig:
        names = data.get("id2label") or {}
        if not isinstance(names, dict):
            raise ValueError(f"{source} has id2label={names!r:.80}; expected an object of labels")
        labels = tuple(str(names.get(str(number), f"LABEL_{number}")) for number in range(outputs))
        try:
            check_labels(labels)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        if task == "classification" and names and len(names) != outputs:
            raise ValueError(f"{source} names {len(names)} labels, but the head has {outputs} outputs")
        drop_prob = data.get(self.head_drop_key)
        drop_prob = _HEAD_DROP_PROB if drop_prob is None else drop_prob
        if isinstance(drop_prob, bool) or not isinstance(drop_prob, int | float) or not 0 <= drop_prob < 1:
            raise ValueError(f"{source} has {self.head_drop_key}={drop_prob!r:.80}; expected a probability below 1")
        activation = data.get(schema.activation_key or "", schema.activation)
        if activation not in (None, "tanh", "relu", "gelu"):
            raise ValueError(f"{source} has {schema.activation_key}={activation!r:.80}. Use tanh, relu or gelu")
        problem = data.get("problem_type") or "single_label_classification"
        if problem not in get_args(Problem):
            raise ValueError(f"{source} has problem_type={problem!r:.80}. Use one of: {', '.join(get_args(Problem))}")
        pooling = data.get(self.head_pooling_key or "") or next(iter(self.head_poolings))
        if pooling not in list(self.head_poolings):  # it may be a list, which a mapping cannot look up
            raise ValueError(
                f"{source} has {self.head_pooling_key}={pooling!r:.80}, which is not supported. "
                f"Use {' or '.join(self.head_poolings)}"
            )
        return HeadConfig(
            labels=labels,
            pooling=self.head_poolings[pooling],
            activation=activation,
            dense_bias=bool(data.get(schema.bias_key or "", schema.dense_bias)),
            norm=schema.norm,
            drop_prob=drop_prob,
            problem=cast(Problem, problem),
        )

    def _foreign_pooling(self, ours: HeadPooling) -> str:
        for foreign, pooling in self.head_poolings.items():
            if pooling == ours:
                return foreign
        raise ValueError(
            f"a {self.model_type} classifier cannot hold pooling={ours!r}; it needs {' or '.join(self.head_poolings)}"
        )


def register(family: EncoderFamily) -> EncoderFamily:
    """Add a family to `ENCODER_FAMILIES` and return it.

    Raises:
        ValueError: a table names a config field that does not exist; another family has the same model type.
    """
    family.check_field_names(EncoderConfig)
    first, *others = (
        replace(names, family=family.model_type) for names in (family.parameter_names, *family.other_names)
    )
    family = replace(family, parameter_names=first, other_names=tuple(others))
    return ENCODER_FAMILIES.register(family)


def _remove_prefix(prefix: str, items: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in items.items() if name.startswith(prefix)}


def _add_prefix(prefix: str, items: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + name: value for name, value in items.items()}
