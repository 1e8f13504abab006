"""Keys of a config.json for rotary positions: rope_parameters (transformers 5), rope_theta and rope_scaling (4)."""

from collections.abc import Mapping
from typing import Any

from clearhead.models.config import EncoderConfig

ROTARY_KEYS = frozenset({"rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor"})
ROTARY_FIELDS = frozenset({"rotary_theta", "rotary_factor"})

_SUPPORTED = {"default": {"rope_theta"}, "linear": {"rope_theta", "factor"}}


def read_rotary(data: Mapping[str, Any], default_theta: float) -> dict[str, float]:
    """Return the fields of a config that the keys of rotary positions set.

    Args:
        data: the contents of config.json.
        default_theta: the base of the family where config.json has none.

    Raises:
        ValueError: an unsupported rope_type, an unknown key in it, or a number that is not above 0.

    >>> read_rotary({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 10000.0)
    {'rotary_theta': 10000.0, 'rotary_factor': 2.0}
    """
    name = "rope_scaling" if data.get("rope_scaling") else "rope_parameters"
    parameters = data.get(name) or {}
    if not isinstance(parameters, dict):
        raise ValueError(f"{name}={parameters!r:.80}; expected an object")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if not isinstance(kind, str) or kind not in _SUPPORTED:
        raise ValueError(
            f"{name} has rope_type={kind!r:.80}, which is not supported. Use one of: {', '.join(_SUPPORTED)}"
        )
    known = {"rope_type", "type", "partial_rotary_factor", *_SUPPORTED[kind]}
    for key, value in parameters.items():
        if key not in known and value is not None:
            raise ValueError(
                f"{name} has {key}={value!r:.80}, which a rope_type of {kind!r} does not use. Remove the key"
            )
    for source in (data, parameters):
        if source.get("partial_rotary_factor") not in (None, 1):
            raise ValueError(
                f"partial_rotary_factor={source['partial_rotary_factor']!r:.80} is not supported; all columns are "
                "rotated"
            )
    theta = parameters.get("rope_theta")
    theta = data.get("rope_theta") if theta is None else theta
    return {
        "rotary_theta": _positive(default_theta if theta is None else theta, "rope_theta"),
        "rotary_factor": _positive(parameters.get("factor"), "factor") if kind == "linear" else 1.0,
    }


def write_rotary(config: EncoderConfig) -> dict[str, Any]:
    """Return the keys for the rotary positions of a config, as transformers 5 reads them.

    >>> write_rotary(EncoderConfig(vocab_size=9, positions="rotary"))
    {'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000.0}}
    """
    if config.rotary_factor == 1.0:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_theta}}
    return {
        "rope_parameters": {
            "rope_type": "linear",
            "rope_theta": config.rotary_theta,
            "factor": config.rotary_factor,
        }
    }


def _positive(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise ValueError(f"{key}={value!r:.80}; expected a number above 0")
    return float(value)
