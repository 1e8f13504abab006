"""How a family's config.json reads as one of our plans, and back: keys and their meaning, as data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar, get_args

Plan = TypeVar("Plan")

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
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


@dataclass(frozen=True)
class Peculiar(Generic[Plan]):
    """What of a config.json no table can say.

    Args:
        keys: the config.json keys that `read` understands.
        names: the fields of the plan that it fills.
        read: config.json -> these fields; it may raise a ValueError.
        write: a plan -> these keys.
    """

    keys: frozenset[str]
    names: frozenset[str]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Plan], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PlanFormat(Generic[Plan]):
    """How a family says its models' plans.

    Args:
        model_type: its name in config.json.
        architecture: the class that transformers opens the saved folder with.
        keys: config.json key -> (field of the plan, the family's default or None where the key is needed).
        fixed: fields of the plan that are the same in all its models.
        only: config.json keys that change the mathematics, with the one value that is understood.
        inert: config.json keys of this family that change nothing.
        optional: field of the plan -> the foreign tensor whose presence sets it, such as the pooler's.
        peculiar: what of its config.json no table can say.
    """

    model_type: str
    architecture: str
    keys: Mapping[str, tuple[str, Any]]
    fixed: Mapping[str, Any]
    only: Mapping[str, Any]
    inert: frozenset[str] = frozenset()
    optional: Mapping[str, str] = field(default_factory=dict)
    peculiar: Peculiar[Plan] | None = None

    def _read(self, plan: type[Plan], data: Mapping[str, Any], names: Iterable[str], where: str, **told: Any) -> Plan:
        """The plan that a config.json and the names in the weights describe, with some fields told already.

        Raises:
            ValueError: a key is missing, or one that changes the mathematics is not understood.
        """
        self._refuse_unknown(data, where)
        values = {**self.fixed, **told}
        for key, (name, default) in self.keys.items():
            value = default if data.get(key) is None else data[key]
            if value is None:
                raise ValueError(f"{where} lacks {key}")
            if name == "activation":
                values[name] = _activation(value, key, where)
            else:
                values[name] = _checked(value, _kinds(plan, name), key, where)
        present = set(names)
        values |= {name: foreign in present for name, foreign in self.optional.items()}
        try:
            if self.peculiar is not None:
                values |= self.peculiar.read(data)
            return plan(**values)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def _write(self, config: Plan, *told: str) -> dict[str, Any]:
        """The config.json of a plan, some fields of which are told elsewhere.

        Raises:
            ValueError: the family has no way to say a part of the plan.
        """
        known = {*told, *self.fixed, *self.optional, *(name for name, _ in self.keys.values())}
        known |= self.peculiar.names if self.peculiar else set()
        for part in fields(config):  # type: ignore[arg-type]
            value = getattr(config, part.name)
            wanted = self.fixed.get(part.name, value if part.name in known else part.default)
            if value != wanted:
                raise ValueError(
                    f"a {self.model_type} checkpoint cannot hold {part.name}={value!r}; it needs {wanted!r}"
                )
        data: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        for key, (name, _) in self.keys.items():
            value = getattr(config, name)
            if value is not None:
                data[key] = _foreign_activation(value) if name == "activation" else value
        return data | (self.peculiar.write(config) if self.peculiar else {})

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


def _activation(name: object, key: str, where: str) -> str:
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"{where} says {key}={name!r}, which is not supported; these are: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _kinds(plan: type, name: str) -> tuple[object, ...]:
    kind = plan.__dataclass_fields__[name].type  # type: ignore[attr-defined]
    return get_args(kind) or (kind,)


def _checked(value: object, kinds: tuple[object, ...], key: str, where: str) -> bool | int | float:
    if bool in kinds:
        if not isinstance(value, bool):
            raise ValueError(f"{where} says {key}={value!r}; true or false is wanted")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} says {key}={value!r}; a number is wanted")
    if float not in kinds and not isinstance(value, int):
        raise ValueError(f"{where} says {key}={value!r}; a whole number is wanted")
    return value


def _foreign_activation(ours: str) -> str:
    foreign = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu"}
    if ours not in foreign:
        raise ValueError(f"this family's checkpoints cannot hold activation={ours!r}; they need one of {list(foreign)}")
    return foreign[ours]
