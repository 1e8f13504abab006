"""Registry of attention backends: implementations of one equation, chosen by capability and speed.

A backend is one function in its own module, registered with `register_backend`. `kernels/attention.py` imports
these modules and is the entry point.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.equations.masks import Mask


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The inputs of one attention computation.

    Args:
        q: queries (B, H, L, d_k).
        k: keys (B, H, M, d_k).
        v: values (B, H, M, d_v).
        mask: a mask that fits these sizes, or None.
        drop_prob: dropout of the attention weights, from 0 up to, not including, 1.
        scale: factor of Q Kᵀ; 1 / √d_k where None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None = None
    drop_prob: float = 0.0
    scale: float | None = None

    @property
    def queries(self) -> int:
        """Number of queries L."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """Number of keys M."""
        return self.k.shape[2]

    @property
    def is_packed(self) -> bool:
        """Whether several sequences are packed into one row."""
        return self.mask is not None and self.mask.lengths is not None

    @property
    def needs_grad(self) -> bool:
        """Whether autograd records the call."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (self.q, self.k, self.v))


Compute = Callable[[AttentionCall], Tensor]
Condition = Callable[[AttentionCall], bool]


@dataclass(frozen=True, eq=False)
class AttentionBackend:
    """A named implementation of scaled dot-product attention.

    Args:
        name: name for `attention_backend`.
        rank: order of preference; lower ranks are tried first.
        compute: return the values (B, H, L, d_v).
        supports: whether `compute` is correct for a call.
        is_fastest: whether to prefer it for a call over all backends of higher rank.
    """

    name: str
    rank: int
    compute: Compute
    supports: Condition
    is_fastest: Condition


BACKENDS: dict[str, AttentionBackend] = {}
"""All backends by name, in order of preference."""

_FORCED: ContextVar[AttentionBackend | None] = ContextVar("forced attention backend", default=None)


def always(call: AttentionCall) -> bool:
    """Return True: the condition of a backend without restrictions."""
    return True


def never(call: AttentionCall) -> bool:
    """Return False: as `is_fastest`, the condition of a backend that is only used by name."""
    return False


def register_backend(
    name: str, rank: int, *, supports: Condition = always, is_fastest: Condition = always
) -> Callable[[Compute], Compute]:
    """Register the decorated function as an attention backend.

    Args:
        name, rank, supports, is_fastest: see `AttentionBackend`.

    Raises:
        ValueError: the name is already registered.
    """

    def register(compute: Compute) -> Compute:
        if name in BACKENDS:
            raise ValueError(f"there already is an attention backend named {name!r}")
        backend = AttentionBackend(name, rank, compute, supports, is_fastest)
        ordered = sorted([*BACKENDS.values(), backend], key=lambda known: known.rank)
        BACKENDS.clear()
        BACKENDS.update({known.name: known for known in ordered})
        return compute

    return register


@contextlib.contextmanager
def attention_backend(name: str | AttentionBackend) -> Iterator[None]:
    """Use one attention backend for all attention in this context, instead of the fastest.

    The override applies to the current thread or asyncio task only. Code compiled by `torch.compile` ignores it.

    Args:
        name: a registered name, such as "explicit", or a backend that is not registered.

    Raises:
        ValueError: an unknown name; inside the block, a call that the backend does not support.

    >>> import torch; from clearhead import MultiHeadAttention
    >>> from clearhead.kernels.attention import attention_backend
    >>> with attention_backend("explicit"):
    ...     MultiHeadAttention(8, 2)(torch.rand(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """
    if isinstance(name, str) and name not in BACKENDS:
        raise ValueError(f"attention backends are {', '.join(BACKENDS)}; got {name!r}")
    token = _FORCED.set(BACKENDS[name] if isinstance(name, str) else name)
    try:
        yield
    finally:
        _FORCED.reset(token)


def forced_backend() -> AttentionBackend | None:
    """Return the backend that `attention_backend` has set; None outside of it."""
    # TorchDynamo cannot trace a ContextVar
    return None if torch.compiler.is_dynamo_compiling() else _FORCED.get()


def fastest_backend(call: AttentionCall) -> AttentionBackend:
    """Return the first backend, by rank, that supports the call and is the fastest for it."""
    for backend in BACKENDS.values():
        if backend.supports(call) and backend.is_fastest(call):
            return backend
    raise AssertionError("the explicit backend supports every call")
