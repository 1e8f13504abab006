"""What an encoder family is: a table of names, and how its config.json reads. One file a family fills this in."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from torch import Tensor

from clearhead.checkpoints.load import build_and_load
from clearhead.checkpoints.save import write_model
from clearhead.checkpoints.schema.config_schema import ConfigSchema
from clearhead.checkpoints.schema.head_schema import HeadFormat, MaskedFormat, Task
from clearhead.checkpoints.schema.parameter_names import ParameterNames
from clearhead.io.safetensors import read_weights
from clearhead.models.config import EncoderConfig, HeadConfig, Pooling, Problem
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, SpanClassifier

log = logging.getLogger(__name__)

_HEAD_DROP_PROB = 0.1
"""Dropout of a head whose config.json has no classifier_dropout."""

ENCODER_ONLY = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "position_embedding_type": "absolute",
}
"""Keys that change the mathematics, with the value that an encoder has."""


@dataclass(frozen=True, kw_only=True)
class EncoderFamily(ConfigSchema[EncoderConfig]):
    """One family of encoder checkpoints.

    Args:
        table: its tensor names.
        prefix: what a model with a head puts before the names of its body, such as "bert.".
        heads: its heads, by task.
        masked: its head for hidden tokens.
        head_pooling: config.json key that names the pooling of a classification; first token where there is none.
        others: as in `ConfigSchema`.
    """

    table: ParameterNames
    prefix: str
    masked: MaskedFormat
    only: Mapping[str, Any] = field(default_factory=lambda: ENCODER_ONLY)
    heads: Mapping[Task, HeadFormat] = field(default_factory=dict)
    head_pooling: str | None = None

    def plan(self, **parts: Any) -> EncoderConfig:
        """The plan of a new model that this family's checkpoints can hold.

        Args:
            parts: fields of `EncoderConfig`; vocab_size is needed. The others are the family's own where it has no
                choice, else its usual ones; a padding's id that is not given lies in the vocabulary.

        Raises:
            ValueError: a part that the family cannot hold, with those that can; one that is no part of a plan; an id
                outside the vocabulary.

        >>> from clearhead.checkpoints import FAMILIES
        >>> FAMILIES["bert"].plan(vocab_size=1000, num_layers=6).d_model
        768
        """
        parts = self._parts(EncoderConfig, parts)
        fresh, size = self._fresh(EncoderConfig, parts), parts["vocab_size"]
        config = EncoderConfig(**fresh | {"pad_id": parts.get("pad_id", min(fresh["pad_id"], size - 1))})
        self.write_config(config)  # says what of it the family cannot hold
        return config

    def _kin(self) -> Iterable[ConfigSchema[EncoderConfig]]:
        from clearhead.checkpoints import FAMILIES  # they all import this file

        return FAMILIES.values()

    def read_config(self, data: Mapping[str, Any], names: Iterable[str], where: str) -> EncoderConfig:
        """The plan that a config.json and the names in the weights describe.

        Raises:
            ValueError: a key is missing, or one that changes the mathematics is not understood.
        """
        return self._read(EncoderConfig, data, names, where)

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """The config.json of a plan.

        Raises:
            ValueError: the family has no way to say a part of the plan.
        """
        return self._write(config)

    def load(
        self,
        folder: Path,
        data: Mapping[str, Any],
        configure: Callable[[EncoderConfig], EncoderConfig] = lambda config: config,
    ) -> EncoderModel:
        """The model in a folder, in float32 and evaluation mode.

        Args:
            folder: the folder.
            data: its config.json.
            configure: changes the config before the model is built, such as its dropout rates.
        """
        tensors, where = read_weights(folder)
        body = self.body_of(tensors, where)
        config_file = str(folder / "config.json")
        config = configure(self.read_config(data, body, config_file))
        self.check_layers(config, body, where)
        aside = self.table.left_aside_in(body)
        if aside:
            log.info("%s: %d tensors that encoding does not use were left aside: %s", where, len(aside), aside)
        return build_and_load(
            lambda: EncoderModel(config), lambda wanted: self.table.to_ours(body, wanted, where), config_file
        )

    def load_with_head(
        self,
        folder: Path,
        data: Mapping[str, Any],
        task: Task,
        configure: Callable[[EncoderConfig], EncoderConfig] = lambda config: config,
        drop_prob: float | None = None,
    ) -> EncoderClassifier | SpanClassifier:
        """The model in a folder with its head for a task, in float32 and evaluation mode.

        Args:
            folder: the folder.
            data: its config.json.
            task: task of the head.
            configure: as in `load`.
            drop_prob: dropout of the head instead of the saved one.

        Raises:
            ValueError: as in `load`; or the folder holds no head for the task.
        """
        tensors, where = read_weights(folder)
        head = self.heads[task]
        held = {name: tensors.pop(name) for name in head.rows if isinstance(name, str) and name in tensors}
        last = next(name for name, ours in head.rows.items() if ours == "out.weight")
        if last not in held:
            raise ValueError(f"{where} has no {last}: a {head.architecture} has one, and is wanted for {task}")
        body = self.body_of(tensors, where)
        config_file = str(folder / "config.json")
        config = configure(self.read_config(data, body, config_file))
        self.check_layers(config, body, where)
        plan = self._head_config(head, data, held[str(last)].shape[0], task, config_file)
        if drop_prob is not None:
            plan = replace(plan, drop_prob=drop_prob)
        rows = ParameterNames(rows=head.rows)

        def ours(wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
            of_head = rows.to_ours(held, _below("head.", wanted), where)
            of_body = self.table.to_ours(body, _below("body.", wanted), where)
            return _above("head.", of_head) | _above("body.", of_body)

        build = EncoderClassifier if task == "classification" else SpanClassifier
        return build_and_load(lambda: build(config, plan), ours, config_file)

    def save(self, model: EncoderModel, folder: Path) -> None:
        """Writes a model's weights and config.json so that transformers opens the folder."""
        write_model(
            folder, self.write_config(self.storable_config(model.config)), self.table.to_foreign(model.state_dict())
        )

    def save_with_head(self, model: EncoderClassifier | SpanClassifier, folder: Path) -> None:
        """Writes a model with its head so that transformers opens the folder."""
        task: Task = "classification" if isinstance(model, EncoderClassifier) else "span"
        head, plan = self.heads[task], model.head_config
        data = self.write_config(self.storable_config(model.body.config)) | {"architectures": [head.architecture]}
        data["id2label"] = {str(number): label for number, label in enumerate(plan.labels)}
        data["label2id"] = {label: number for number, label in enumerate(plan.labels)}
        if task == "classification":
            data["problem_type"] = plan.problem
            if plan.drop_prob != _HEAD_DROP_PROB:
                data["classifier_dropout"] = plan.drop_prob
        if head.activation_key and head.bias_key:
            data |= {head.activation_key: plan.activation, head.bias_key: plan.dense_bias}
        if self.head_pooling:
            data[self.head_pooling] = plan.pooling
        body = self.table.to_foreign(model.body.state_dict())
        tensors = {f"{self.prefix}{name}": tensor for name, tensor in body.items()}
        write_model(folder, data, tensors | ParameterNames(rows=head.rows).to_foreign(model.head.state_dict()))

    def body_of(self, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
        """A file's tensors without what a model with a head puts before their names."""
        body: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            short = name.removeprefix(self.prefix)
            if short in body:
                raise ValueError(f"{where} holds tensor {short} twice, with and without {self.prefix!r} before it")
            body[short] = tensor
        return body

    def check_layers(self, config: EncoderConfig, tensors: Mapping[str, Tensor], where: str) -> None:
        """Before a model of a million layers is built to find out that it does not fit."""
        if config.num_layers > len(tensors):
            raise ValueError(f"{where}: config.json says {config.num_layers} layers; here are {len(tensors)} tensors")

    def _head_config(
        self, head: HeadFormat, data: Mapping[str, Any], outputs: int, task: Task, where: str
    ) -> HeadConfig:
        given = data.get("id2label") or {}
        if not isinstance(given, dict):
            raise ValueError(f"{where} says id2label={given!r}; an object of labels is wanted")
        labels = tuple(str(given.get(str(number), f"LABEL_{number}")) for number in range(outputs))
        if task == "classification" and given and len(given) != outputs:
            raise ValueError(f"{where} names {len(given)} labels, but the head has {outputs} outputs")
        drop_prob = data.get("classifier_dropout")
        drop_prob = _HEAD_DROP_PROB if drop_prob is None else drop_prob
        if isinstance(drop_prob, bool) or not isinstance(drop_prob, int | float) or not 0 <= drop_prob < 1:
            raise ValueError(f"{where} says classifier_dropout={drop_prob!r}; a probability is wanted")
        activation = data.get(head.activation_key or "", head.activation)
        if activation not in (None, "tanh", "relu", "gelu"):
            raise ValueError(f"{where} says {head.activation_key}={activation!r}; tanh, relu and gelu are supported")
        problem = data.get("problem_type") or "single_label_classification"
        if problem not in get_args(Problem):
            raise ValueError(f"{where} says problem_type={problem!r}; these are known: {', '.join(get_args(Problem))}")
        pooling = data.get(self.head_pooling or "") or "cls"
        if pooling not in ("cls", "mean"):
            raise ValueError(f"{where} says {self.head_pooling}={pooling!r}, which is not supported; cls and mean are")
        return HeadConfig(
            labels=labels,
            pooling=cast(Pooling, pooling),
            activation=activation,
            dense_bias=bool(data.get(head.bias_key or "", head.dense_bias)),
            norm=head.norm,
            drop_prob=drop_prob,
            problem=cast(Problem, problem),
        )


def _below(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def _above(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + name: value for name, value in named.items()}
