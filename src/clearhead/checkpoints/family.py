"""What a checkpoint family is: a table of names, and how its config.json reads. One file a family fills this in."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.checkpoints import directory
from clearhead.checkpoints.names import NameTable, Rows
from clearhead.models.config import EncoderConfig, HeadConfig, Pooling, Problem
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, SpanReader

log = logging.getLogger(__name__)

Task = Literal["classification", "span"]
Model = TypeVar("Model", bound=nn.Module)

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""The activations' names in a config.json, and ours."""

INERT_KEYS = frozenset(
    {
        *("architectures", "auto_map", "dtype", "finetuning_task", "gradient_checkpointing", "id2label", "label2id"),
        *("keys_to_ignore_at_inference", "language", "languages", "max_length", "min_length", "model_max_length"),
        *("model_type", "name", "name_or_path", "num_labels", "output_attentions", "output_hidden_states"),
        *("output_past", "output_scores", "prefix", "problem_type", "return_dict", "sentence_transformers"),
        *("task_specific_params", "tie_word_embeddings", "tokenizer_class", "torch_dtype", "torchscript"),
        *("transformers.js_config", "transformers_version", "use_bfloat16", "use_cache", "classifier_dropout"),
        *("bos_token_id", "cls_token_id", "eos_token_id", "mask_token_id", "sep_token_id", "unk_token_id"),
        # of the pooler that the first BERT code described and never built
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    }
)
"""Keys of a config.json that never change what an encoder computes."""

ENCODER_ONLY = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "position_embedding_type": "absolute",
}
"""Keys that change the mathematics, with the value that an encoder has."""


@dataclass(frozen=True)
class HeadFormat:
    """How a family keeps one kind of head.

    Args:
        architecture: the class that transformers opens the saved folder with.
        rows: foreign tensor name -> name in our `OutputHead`.
        activation, dense_bias, norm: as in `HeadConfig`.
        activation_key, bias_key: config.json keys that say activation and dense_bias instead, if the family has them.
    """

    architecture: str
    rows: Rows
    activation: Literal["tanh", "relu", "gelu"] | None = None
    dense_bias: bool = True
    norm: bool = False
    activation_key: str | None = None
    bias_key: str | None = None


@dataclass(frozen=True)
class Peculiar:
    """What of a config.json no table can say.

    Args:
        keys: the config.json keys that `read` understands.
        names: the EncoderConfig fields that it fills.
        read: config.json -> these fields; it may raise a ValueError.
        write: a plan -> these keys.
    """

    keys: frozenset[str]
    names: frozenset[str]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[EncoderConfig], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """One checkpoint family.

    Args:
        model_type: its name in config.json.
        architecture: the class that transformers opens the saved folder with.
        table: its tensor names.
        prefix: what a model with a head puts before the names of its body, such as "bert.".
        keys: config.json key -> (field of EncoderConfig, the family's default or None where the key is needed).
        fixed: EncoderConfig fields that are the same in all its models.
        only: config.json keys that change the mathematics, with the one value that is understood.
        inert: config.json keys of this family that change nothing.
        optional: EncoderConfig field -> the foreign tensor whose presence sets it, such as the pooler's.
        peculiar: what of its config.json no table can say.
        heads: its heads, by task.
        head_pooling: config.json key that names the pooling of a classification; first token where there is none.
    """

    model_type: str
    architecture: str
    table: NameTable
    prefix: str
    keys: Mapping[str, tuple[str, Any]]
    fixed: Mapping[str, Any]
    only: Mapping[str, Any] = field(default_factory=lambda: ENCODER_ONLY)
    inert: frozenset[str] = frozenset()
    optional: Mapping[str, str] = field(default_factory=dict)
    peculiar: Peculiar | None = None
    heads: Mapping[Task, HeadFormat] = field(default_factory=dict)
    head_pooling: str | None = None

    def read_config(self, data: Mapping[str, Any], names: Iterable[str], where: str) -> EncoderConfig:
        """The plan that a config.json and the names in the weights describe.

        Raises:
            ValueError: a key is missing, or one that changes the mathematics is not understood.
        """
        self._refuse_unknown(data, where)
        values = dict(self.fixed)
        for key, (name, default) in self.keys.items():
            value = default if data.get(key) is None else data[key]
            if value is None:
                raise ValueError(f"{where} lacks {key}")
            values[name] = _activation(value, key, where) if name == "activation" else _number(value, key, name, where)
        present = set(names)
        values |= {name: foreign in present for name, foreign in self.optional.items()}
        try:
            if self.peculiar is not None:
                values |= self.peculiar.read(data)
            return EncoderConfig(**values)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """The config.json of a plan.

        Raises:
            ValueError: the family has no way to say a part of the plan.
        """
        told = {*self.fixed, *self.optional, *(name for name, _ in self.keys.values())}
        told |= self.peculiar.names if self.peculiar else set()
        for part in fields(EncoderConfig):
            value = getattr(config, part.name)
            wanted = self.fixed.get(part.name, value if part.name in told else part.default)
            if value != wanted:
                raise ValueError(
                    f"a {self.model_type} checkpoint cannot hold {part.name}={value!r}; it needs {wanted!r}"
                )
        data: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        for key, (name, _) in self.keys.items():
            value = getattr(config, name)
            data[key] = _foreign_activation(value) if name == "activation" else value
        return data | (self.peculiar.write(config) if self.peculiar else {})

    def load(self, folder: Path, data: Mapping[str, Any]) -> EncoderModel:
        """The model in a folder, in float32 and evaluation mode."""
        tensors, where = directory.read_weights(folder)
        body = self._body(tensors, where)
        config = self.read_config(data, body, str(folder / "config.json"))
        self._check_layers(config, body, where)
        aside = self.table.left_aside_in(body)
        if aside:
            log.info("%s: %d tensors that encoding does not use were left aside: %s", where, len(aside), aside)
        return _filled(lambda: EncoderModel(config), lambda wanted: self.table.to_ours(body, wanted, where))

    def load_with_head(self, folder: Path, data: Mapping[str, Any], task: Task) -> EncoderClassifier | SpanReader:
        """The model in a folder with its head for a task, in float32 and evaluation mode.

        Raises:
            ValueError: as in `load`; or the folder holds no head for the task.
        """
        tensors, where = directory.read_weights(folder)
        head = self.heads[task]
        held = {name: tensors.pop(name) for name in head.rows if isinstance(name, str) and name in tensors}
        last = next(name for name, ours in head.rows.items() if ours == "out.weight")
        if last not in held:
            raise ValueError(f"{where} has no {last}: a {head.architecture} has one, and is wanted for {task}")
        body = self._body(tensors, where)
        config_file = str(folder / "config.json")
        config = self.read_config(data, body, config_file)
        self._check_layers(config, body, where)
        plan = self._head_config(head, data, held[str(last)].shape[0], task, config_file)
        rows = NameTable(rows=head.rows)

        def ours(wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
            of_head = rows.to_ours(held, _below("head.", wanted), where)
            of_body = self.table.to_ours(body, _below("body.", wanted), where)
            return _above("head.", of_head) | _above("body.", of_body)

        build = EncoderClassifier if task == "classification" else SpanReader
        return _filled(lambda: build(config, plan), ours)

    def save(self, model: EncoderModel, folder: Path) -> None:
        """Writes a model's weights and config.json so that transformers opens the folder."""
        self._write(folder, self.write_config(model.config), self.table.to_foreign(model.state_dict()))

    def save_with_head(self, model: EncoderClassifier | SpanReader, folder: Path) -> None:
        """Writes a model with its head so that transformers opens the folder."""
        task: Task = "classification" if isinstance(model, EncoderClassifier) else "span"
        head, plan = self.heads[task], model.head_config
        data = self.write_config(model.body.config) | {"architectures": [head.architecture]}
        data["id2label"] = {str(number): label for number, label in enumerate(plan.labels)}
        data["label2id"] = {label: number for number, label in enumerate(plan.labels)}
        if task == "classification":
            data["problem_type"] = plan.problem
        if head.activation_key and head.bias_key:
            data |= {head.activation_key: plan.activation, head.bias_key: plan.dense_bias}
        if self.head_pooling:
            data[self.head_pooling] = plan.pooling
        body = self.table.to_foreign(model.body.state_dict())
        tensors = {f"{self.prefix}{name}": tensor for name, tensor in body.items()}
        self._write(folder, data, tensors | NameTable(rows=head.rows).to_foreign(model.head.state_dict()))

    def _write(self, folder: Path, data: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        directory.write_weights(folder / "model.safetensors", tensors)
        directory.write_json(folder / "config.json", data)

    def _body(self, tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
        body: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            short = name.removeprefix(self.prefix)
            if short in body:
                raise ValueError(f"{where} holds tensor {short} twice, with and without {self.prefix!r} before it")
            body[short] = tensor
        return body

    def _check_layers(self, config: EncoderConfig, tensors: Mapping[str, Tensor], where: str) -> None:
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
        drop_prob = 0.1 if drop_prob is None else drop_prob
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

    def _refuse_unknown(self, data: Mapping[str, Any], where: str) -> None:
        known = {*self.keys, *self.inert, *INERT_KEYS, *(self.peculiar.keys if self.peculiar else ())}
        for key, value in data.items():
            if key in self.only:
                if value not in (None, self.only[key]):
                    raise ValueError(
                        f"{where} says {key}={value!r}, which changes what the model computes and is not supported; "
                        f"only {self.only[key]!r} is"
                    )
            # None and empty say nothing; false and 0 may switch off what is on by default
            elif key not in known and not key.startswith("_") and value not in (None, "", [], {}):
                raise ValueError(
                    f"{where} says {key}={value!r}, which is not known here and may change what the model computes; "
                    "if it does not, take it out of the file"
                )


def _filled(build: Callable[[], Model], ours: Callable[[Mapping[str, tuple[int, ...]]], dict[str, Tensor]]) -> Model:
    """A model with a checkpoint's tensors, in evaluation mode."""
    with torch.device("meta"):  # shapes alone: a config may ask for more than any memory holds
        wanted = {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}
    tensors = ours(wanted)
    with _NoDraws():
        model = build()
    model.load_state_dict(tensors, assign=True)
    return model.eval()


class _NoDraws(TorchFunctionMode):
    """Random initial weights are not drawn: a checkpoint is about to replace them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_) or _is_initialiser(func):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _is_initialiser(func: object) -> bool:
    return getattr(func, "__module__", None) == "torch.nn.init"


def _below(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def _above(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + name: value for name, value in named.items()}


def _activation(name: object, key: str, where: str) -> str:
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"{where} says {key}={name!r}, which is not supported; these are: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _number(value: object, key: str, name: str, where: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} says {key}={value!r}; a number is wanted")
    if EncoderConfig.__dataclass_fields__[name].type is int and not isinstance(value, int):
        raise ValueError(f"{where} says {key}={value!r}; a whole number is wanted")
    return value


def _foreign_activation(ours: str) -> str:
    foreign = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
    if ours not in foreign:
        raise ValueError(f"this family's checkpoints cannot hold activation={ours!r}; they need one of {list(foreign)}")
    return foreign[ours]
