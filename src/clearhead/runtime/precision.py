"""In which numbers a model computes, and where."""

import copy
import ctypes
import functools
import os
import sys
from typing import Any, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from clearhead.choices import check_choice
from clearhead.kernels import cpu
from clearhead.layers.embedding import OutputProjection
from clearhead.runtime import prepacked_linear
from clearhead.runtime.compile import compile_layers
from clearhead.stacks.decoder import Decoder
from clearhead.stacks.encoder import Encoder

Precision = Literal["auto", "float32", "bfloat16"]
Model = TypeVar("Model", bound=nn.Module)
PRECISIONS: tuple[str, ...] = get_args(Precision)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Names of malloc.h: from how many free bytes on pages are given back, and which blocks have pages of their own."""
_MADE: WeakKeyDictionary[nn.Module, WeakSet[nn.Module]] = WeakKeyDictionary()

# huge pages for large tensors: PyTorch asks when it makes its first, so this is told when the module is imported; the
# logits and vocabulary of a generation are read through fewer entries of the processor's page table
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def device_named(device: str) -> torch.device:
    """The device for a name; "auto" is the accelerator if there is one, else the CPU.

    Raises:
        ValueError: a name that torch does not know, or a device that is not there.
    """
    if device == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
    return found


def dtype_for(precision: str, device: torch.device) -> torch.dtype:
    """The numbers to compute with; "auto" is bfloat16 where the device multiplies it fast, else float32.

    Raises:
        ValueError: an unknown precision.
    """
    check_choice("precision", precision, PRECISIONS)
    if precision == "auto":
        return torch.bfloat16 if _fast_bfloat16(device) else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def inference_copy(model: Model, dtype: torch.dtype, device: torch.device, *, compiles: bool = False) -> Model:
    """A model for running: the same weights in another precision or on another device.

    The given model stays as it is, so that what is saved later has lost nothing. Embeddings and heads stay in float32:
    what is looked up, and what is small, gains nothing. On the device of the model what is changed there in place (by
    an optimiser's step, by `load_state_dict`) is used from the next call on; after parameters were replaced, or with
    compiled layers, whose weights are frozen, take a new sibling.

    Args:
        model: the model.
        dtype: numbers of its encoder's and decoder's layers.
        device: where all of it goes.
        compiles: whether its encoder's layers are compiled.

    Raises:
        ValueError: there is no compiler.
    """
    here = next(model.parameters()).device
    plain = dtype == torch.float32 and device == here
    if device.type == "cpu":
        configure_allocator()
    packs = device.type == "cpu" and prepacked_linear.is_supported(dtype)
    if plain and not packs and not compiles:
        return model
    stacks = [module for module in model.modules() if isinstance(module, Encoder | Decoder)]
    kept: dict[int, Any] = {}
    if device == here:  # everything but the layers is shared, and in the same numbers their parameters too
        inside = {id(tensor) for stack in stacks for tensor in stack.parameters()}
        tensors = [*model.parameters(), *model.buffers()]
        kept = {id(tensor): tensor for tensor in tensors if plain or id(tensor) not in inside}
    for output in (module for module in model.modules() if packs and isinstance(module, OutputProjection)):
        kept |= prepacked_linear.replacements(output, dtype)
    for stack in stacks:
        few_rows = isinstance(stack, Decoder)
        known = {**kept, **(prepacked_linear.replacements(stack, dtype, few_rows=few_rows) if packs else {})}
        copied = copy.deepcopy(stack, known).to(device=device, dtype=dtype)
        if device == here and not plain:
            _sync_weights(copied, stack)
        if compiles and isinstance(copied, Encoder) and isinstance(stack, Encoder):
            compile_layers(copied, copy.deepcopy(stack, {**kept}).to(device=device, dtype=dtype))
        kept[id(stack)] = copied
    made = copy.deepcopy(model, kept).to(device)
    _MADE.setdefault(model, WeakSet()).add(made)
    return made


def _sync_weights(copied: nn.Module, stack: nn.Module) -> None:
    """Before each call of a copied stack its own parameters take on what was changed in place: the embeddings and the
    packed products, which are the model's, do so too."""
    own = dict(stack.named_parameters())
    pairs = [(mine, own[name]) for name, mine in copied.named_parameters() if name in own]
    seen = [prepacked_linear.version(theirs) for _, theirs in pairs]

    def take_on(*_: object) -> None:
        versions = [prepacked_linear.version(theirs) for _, theirs in pairs]
        if versions != seen:
            with torch.no_grad():
                for mine, theirs in pairs:
                    mine.copy_(theirs)
            seen[:] = versions

    copied.register_forward_pre_hook(take_on)


def inference_copies(model: nn.Module) -> list[nn.Module]:
    """The copies for running that were made of a model and are there still, for those who watch it."""
    return list(_MADE.get(model, ()))


def trim_memory() -> None:
    """Gives back what is free between blocks in use: with texts of ever new lengths these grow apart, and a long run
    would take ever more memory."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def configure_allocator() -> None:
    """Tells glibc, once a process, to keep the pages of what a layer frees for the next: it gave them back to the
    system, and a fifth of the time of a float32 encoder went into getting them again. And tells oneDNN, before its
    first product, to keep fewer kernels: there is one for each number of rows, 60,000 texts left 100 MiB of them, and
    a training's batches of ever new lengths gigabytes."""
    for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):  # PyTorch's, and oneDNN's own
        os.environ.setdefault(cache, "24")
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)  # the most that it takes
        mallopt(_M_TRIM_THRESHOLD, 256 * 2**20)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def _fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    return cpu.has("avx512_bf16") or cpu.has("amx_bf16")
