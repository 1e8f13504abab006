"""What a checkpoint family is: a table of names, and how its config.json reads. One file a family fills this in."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from clearhead.checkpoints import directory
from clearhead.checkpoints.names import NameTable
from clearhead.models.config import EncoderConfig
from clearhead.models.encoder import EncoderModel

log = logging.getLogger(__name__)

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
    [
        "architectures",
        "auto_map",
        "bos_token_id",
        "classifier_dropout",
        "cls_token_id",
        "directionality",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "keys_to_ignore_at_inference",
        "label2id",
        "language",
        "languages",
        "mask_token_id",
        "max_length",
        "min_length",
        "model_max_length",
        "model_type",
        "name",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "output_scores",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "prefix",
        "problem_type",
        "return_dict",
        "sentence_transformers",
        "sep_token_id",
        "task_specific_params",
        "tie_word_embeddings",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "transformers.js_config",
        "unk_token_id",
        "use_bfloat16",
        "use_cache",
    ]
)
"""Keys of a config.json that never change what an encoder computes."""


@dataclass(frozen=True)
class Family:
    """One checkpoint family.

    Args:
        model_type: its name in config.json.
        architecture: the class that transformers opens the saved folder with.
        table: its tensor names.
        keys: config.json key -> (field of EncoderConfig, the family's default or None where the key is needed).
        fixed: EncoderConfig fields that are the same in all its models.
        only: config.json keys that change the mathematics, with the one value that is understood.
        optional: EncoderConfig field -> the foreign tensor whose presence sets it, such as the pooler's.
    """

    model_type: str
    architecture: str
    table: NameTable
    keys: Mapping[str, tuple[str, Any]]
    fixed: Mapping[str, Any]
    only: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)

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
            values[name] = _activation(value, key, where) if name == "activation" else _number(value, key, where)
        present = {name.removeprefix(self.table.prefix) for name in names}
        values |= {name: foreign in present for name, foreign in self.optional.items()}
        try:
            return EncoderConfig(**values)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """The config.json of a plan.

        Raises:
            ValueError: the family has no way to say a part of the plan.
        """
        told = {*self.fixed, *self.optional, *(name for name, _ in self.keys.values())}
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
        return data

    def load(self, folder: Path, data: Mapping[str, Any]) -> EncoderModel:
        """The model in a folder, in float32 and evaluation mode."""
        tensors, where = directory.read_weights(folder)
        config = self.read_config(data, tensors, str(folder / "config.json"))
        with torch.device("meta"):  # shapes alone: a config may ask for more than any memory holds
            wanted = {name: tuple(tensor.shape) for name, tensor in EncoderModel(config).state_dict().items()}
        ours = self.table.to_ours(tensors, wanted, where)
        with _NoDraws():
            model = EncoderModel(config)
        model.load_state_dict(ours, assign=True)
        heads = self.table.heads(tensors)
        if heads:
            log.info("%s: %d tensors that encoding does not use were left aside: %s", where, len(heads), heads)
        return model.eval()

    def save(self, model: EncoderModel, folder: Path) -> None:
        """Writes a model's weights and config.json so that transformers opens the folder."""
        data = self.write_config(model.config)
        folder.mkdir(parents=True, exist_ok=True)
        directory.write_weights(folder / "model.safetensors", self.table.to_foreign(model.state_dict()))
        directory.write_json(folder / "config.json", data)

    def _refuse_unknown(self, data: Mapping[str, Any], where: str) -> None:
        for key, value in data.items():
            if key in self.only:
                if value not in (None, self.only[key]):
                    raise ValueError(
                        f"{where} says {key}={value!r}, which changes what the model computes and is not supported; "
                        f"only {self.only[key]!r} is"
                    )
            # a key that is off changes nothing, whatever it stands for
            elif key not in self.keys and key not in INERT_KEYS and not key.startswith("_") and value:
                raise ValueError(
                    f"{where} says {key}={value!r}, which is not known here and may change what the model computes; "
                    "if it does not, take it out of the file"
                )


class _NoDraws(TorchFunctionMode):
    """Random initial weights are not drawn: a checkpoint is about to replace them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_) or _is_initialiser(func):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _is_initialiser(func: object) -> bool:
    return getattr(func, "__module__", None) == "torch.nn.init"


def _activation(name: object, key: str, where: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"{where} says {key}={name!r}, which is not supported; these are: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[str(name)]


def _number(value: object, key: str, where: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} says {key}={value!r}; a number is wanted")
    return value


def _foreign_activation(ours: str) -> str:
    foreign = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
    if ours not in foreign:
        raise ValueError(f"this family's checkpoints cannot hold activation={ours!r}; they need one of {list(foreign)}")
    return foreign[ours]
