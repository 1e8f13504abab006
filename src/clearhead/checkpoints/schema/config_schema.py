"""How a family's config.json reads as one of our plans, and back: keys and their meaning, as data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

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

RATES = frozenset(
    {"attention_drop_prob", "activation_drop_prob", "embedding_drop_prob", "layer_drop", "decoder_layer_drop"}
)
"""Fields of a config that only affect training, other than drop_prob, which every family can hold."""

_MOST = 2**63
"""PyTorch counts in 64 bits. What a smaller size needs is compared with the memory before the model is built."""


@dataclass(frozen=True)
class CustomConfig(Generic[Plan]):
    """What of a config.json no table can say.

    Args:
        keys: the config.json keys that `read` understands.
        names: the fields of the plan that it fills.
        read: config.json -> these fields; it may raise a ValueError.
        write: a plan -> these keys.
        follows: the fields of a new plan -> those of them that follow from others, where nobody says otherwise.
    """

    keys: frozenset[str]
    names: frozenset[str]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Plan], dict[str, Any]]
    follows: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda values: {}


@dataclass(frozen=True, kw_only=True)
class ConfigSchema(Generic[Plan]):
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
        usual: fields of a new plan, where they are neither the defaults of `keys` nor those of the plan.
    """

    model_type: str
    architecture: str
    keys: Mapping[str, tuple[str, Any]]
    fixed: Mapping[str, Any]
    only: Mapping[str, Any]
    inert: frozenset[str] = frozenset()
    optional: Mapping[str, str] = field(default_factory=dict)
    peculiar: CustomConfig[Plan] | None = None
    usual: Mapping[str, Any] = field(default_factory=dict)

    def _parts(self, plan: type[Plan], given: Mapping[str, Any], *told: str) -> dict[str, Any]:
        """The given parts of a new model's plan, checked; some fields are told elsewhere than in config.json.

        Raises:
            ValueError: no vocab_size; a part that no plan has, of the wrong kind, or that the family cannot hold.
        """
        known = [part.name for part in fields(plan)]  # type: ignore[arg-type]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"a {self.model_type} plan has no part {unknown[0]}; these are: {', '.join(known)}")
        if given.get("vocab_size") is None:
            raise ValueError(f"a new {self.model_type} model needs a vocab_size, the number of its tokens")
        parts = {name: _part(plan, name, value) for name, value in given.items()}
        for name, value in parts.items():
            if not self._holds(plan, name, value, told):
                raise ValueError(self._cannot_hold(plan, name, value, told))
        return parts

    def _fresh(self, plan: type[Plan], parts: Mapping[str, Any]) -> dict[str, Any]:
        """All fields of a new model's plan: checked parts, and the family's usual ones for the rest."""
        of_plan = {part.name: part.default for part in fields(plan)}  # type: ignore[arg-type]
        of_family = {name: default for name, default in self.keys.values() if default is not None}
        values = {**of_plan, **of_family, **self.usual, **self.fixed, **parts}
        if self.peculiar is not None:
            values |= {**self.peculiar.follows(values), **self.fixed, **parts}
        return values

    def storable_config(self, config: Plan) -> Plan:
        """Return the config with the dropout and LayerDrop rates that the family's config.json can hold.

        The rates only affect training. A rate without a key gets the value that loading the saved model gives.
        """
        names = {part.name for part in fields(config)}  # type: ignore[arg-type]
        derived = self.peculiar.follows(vars(config)) if self.peculiar else {}
        changes = {
            name: self.fixed.get(name, derived.get(name, type(config).__dataclass_fields__[name].default))  # type: ignore[attr-defined]
            for name in names & RATES - {name for name, _ in self.keys.values()}
        }
        return replace(config, **changes)  # type: ignore[type-var]

    def _kin(self) -> Iterable["ConfigSchema[Plan]"]:
        """The families that say plans of the same kind."""
        return ()

    def _holds(self, plan: type[Plan], name: str, value: object, told: Iterable[str]) -> bool:
        return bool(value == self._wanted(plan, name, value, told))

    def _wanted(self, plan: type[Plan], name: str, value: object, told: Iterable[str]) -> object:
        """What a field must be in this family: anything, where a file can say it."""
        said = {*told, *self.optional, *(field for field, _ in self.keys.values())}
        said |= self.peculiar.names if self.peculiar else set()
        if name in self.fixed:
            return self.fixed[name]
        return value if name in said else plan.__dataclass_fields__[name].default  # type: ignore[attr-defined]

    def _cannot_hold(self, plan: type[Plan], name: str, value: object, told: Iterable[str]) -> str:
        others = [kin.model_type for kin in self._kin() if kin._holds(plan, name, value, told)]
        can = f"; {_joined(others)} can" if others else ""
        wanted = self._wanted(plan, name, value, told)
        return f"a {self.model_type} checkpoint cannot hold {name}={value!r}; it needs {wanted!r}{can}"

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
        for part in fields(config):  # type: ignore[arg-type]
            value = getattr(config, part.name)
            if not self._holds(type(config), part.name, value, told):
                raise ValueError(self._cannot_hold(type(config), part.name, value, told))
        data: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        for key, (name, _) in self.keys.items():
            value = getattr(config, name)
            if value is not None:
                data[key] = _foreign_activation(value) if name == "activation" else value
        data |= self.peculiar.write(config) if self.peculiar else {}
        self._refuse_unknown(data, f"the plan of a {self.model_type} model")
        return data

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


def _part(plan: type, name: str, value: Any) -> Any:
    """A field's value, of the kind that the plan says."""
    kind = plan.__dataclass_fields__[name].type  # type: ignore[attr-defined]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{name} is one of {', '.join(get_args(kind))}; got {value!r}")
        return value
    if get_origin(kind) is tuple:
        of = get_args(get_args(kind)[0]) or (int,)
        if not isinstance(value, tuple) or not all(
            type(one) in of or (one is None and NoneType in of) for one in value
        ):
            raise ValueError(f"{name} is a tuple of whole numbers; got {value!r}")
        return value
    kinds = _kinds(plan, name)
    if value is None and NoneType in kinds:
        return None
    number = _checked(value, kinds, name, "the plan")
    return float(number) if float in kinds else number


def _joined(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)


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
    if float in kinds:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{where} says {key}={value!r:.40}; this is greater than any float") from None
    if not isinstance(value, int):
        raise ValueError(f"{where} says {key}={value!r}; a whole number is wanted")
    if abs(value) >= _MOST:
        raise ValueError(f"{where} says {key}={value!r:.40}; a whole number below {_MOST:,} is expected")
    return value


def _foreign_activation(ours: str) -> str:
    foreign = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu"}
    if ours not in foreign:
        raise ValueError(f"this family's checkpoints cannot hold activation={ours!r}; they need one of {list(foreign)}")
    return foreign[ours]
