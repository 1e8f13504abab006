"""Check and convert single values of a config.json."""

from types import NoneType
from typing import Any, Literal, get_args, get_origin

from clearhead.layers.feedforward import GATES

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
"""Names of activations in a config.json -> our names."""

_MAX_INT = 2**63
"""Sizes are 64-bit integers in PyTorch; smaller sizes are compared with the memory before the model is built."""


def check_field(kind: type, name: str, value: Any) -> Any:
    """Return the value of a config field in the type that the config class declares.

    Args:
        kind: the config class.
        name: the field.
        value: the value.

    Raises:
        ValueError: the value has another type or is not one of the choices.

    >>> from clearhead.models.config import EncoderConfig
    >>> check_field(EncoderConfig, "drop_prob", 0)
    0.0
    """
    declared = kind.__dataclass_fields__[name].type  # type: ignore[attr-defined]
    if get_origin(declared) is Literal:
        if value not in get_args(declared):
            raise ValueError(f"expected {name} to be one of {', '.join(get_args(declared))}; got {value!r:.80}")
        return value
    if get_origin(declared) is tuple:
        item_types = get_args(get_args(declared)[0]) or (int,)
        if not isinstance(value, tuple) or not all(
            type(item) in item_types or (item is None and NoneType in item_types) for item in value
        ):
            raise ValueError(f"expected {name} to be a tuple of integers; got {value!r:.80}")
        return value
    types = field_types(kind, name)
    if value is None and NoneType in types:
        return None
    number = check_number(value, types, name, "the config")
    return float(number) if float in types else number


def field_types(kind: type, name: str) -> tuple[object, ...]:
    """Return the types that a config class declares for a field."""
    declared = kind.__dataclass_fields__[name].type  # type: ignore[attr-defined]
    return get_args(declared) or (declared,)


def check_number(value: object, types: tuple[object, ...], key: str, source: str) -> bool | int | float:
    """Return a Boolean or number as one of the expected types.

    Args:
        value: the value.
        types: the expected types.
        key: the key, for messages.
        source: the file, for messages.

    Raises:
        ValueError: the value has another type, or is too large.

    >>> check_number(2, (float,), "dropout", "config.json")
    2.0
    """
    if bool in types:
        if not isinstance(value, bool):
            raise ValueError(f"{source} has {key}={value!r:.80}; expected true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{source} has {key}={value!r:.80}; expected a number")
    if float in types:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{source} has {key}={value!r:.40}, which is greater than any float") from None
    if not isinstance(value, int):
        raise ValueError(f"{source} has {key}={value!r:.80}; expected an integer")
    if abs(value) >= _MAX_INT:
        raise ValueError(f"{source} has {key}={value!r:.40}; expected an integer below {_MAX_INT:,}")
    return value


def our_activation(name: object, key: str, source: str, *, gated: bool = False) -> str:
    """Return our name of an activation, or of the gated one with this gate.

    Raises:
        ValueError: the activation is not supported.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(
            f"{source} has {key}={name!r:.80}, which is not supported. Use one of: {', '.join(ACTIVATIONS)}"
        )
    ours = ACTIVATIONS[name]
    return next(whole for whole, gate in GATES.items() if gate == ours) if gated else ours


def foreign_activation(ours: str, *, gated: bool = False) -> str:
    """Return the name of one of our activations, or of the gate of a gated one, in a config.json.

    Raises:
        ValueError: config.json has no name for it.
    """
    foreign = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu"}
    if gated:
        foreign = {name: foreign[gate] for name, gate in GATES.items()}
    if ours not in foreign:
        raise ValueError(f"this family's checkpoints cannot hold activation={ours!r}; they need one of {list(foreign)}")
    return foreign[ours]
