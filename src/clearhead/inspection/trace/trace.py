"""Every step of a real forward pass: its equation, its named shape, its values.

The model runs as it is, with hooks on its modules. The steps inside attention that a fused kernel hides are replayed
beside it by the explicit equations, from the projections that were observed; where no values are asked for, they are
replayed on shapes alone.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clearhead.equations import embedding
from clearhead.generation.state import keep_outputs
from clearhead.inspection.trace import operations
from clearhead.inspection.trace.attention_replay import CrossReplay, SelfReplay
from clearhead.inspection.trace.records import Operation, Recorder, Trace, dotted
from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.layers.embedding import Embedding, OutputProjection, TokenEmbedding
from clearhead.layers.feedforward import GatedFeedForward
from clearhead.layers.residual import PostNorm, PreNorm


def trace(model: nn.Module, *inputs: Any, values: bool = False) -> Trace:
    """Runs a model once and tells every step of it.

    The model's result, mode and weights stay as they are. In training mode the dropout that really happened is
    shown, but the attention weights' own is not replayed. A model that was compiled runs uncompiled.

    Args:
        model: any module of this library, or a module that holds some.
        *inputs: what `model` is called with.
        values: compute mean, spread and extremes of each step as well.

    Returns:
        The trace: `steps`, and the model's `output`.

    >>> import torch; from clearhead import Encoder, trace
    >>> trace(Encoder(512, 2048, 8, 0.1, 5), torch.rand(2, 10, 512)).steps[2].named_shape
    '[B=2, H=8, Lq=10, Lk=10]'
    """
    return traced(model, lambda: model(*inputs), values=values)


def traced(model: nn.Module, run: Callable[[], Any], *, values: bool = False) -> Trace:
    """Tells every step that a model takes while something runs: a method other than `forward`, or a step of a search.

    Args:
        model: as in `trace`.
        run: what uses the model.
        values: as in `trace`.

    Returns:
        The trace: `steps`, and the `output` of `run`.

    >>> import torch; from clearhead import Seq2Seq, Seq2SeqConfig, traced
    >>> model, start = Seq2Seq(Seq2SeqConfig(vocab_size=100)), torch.tensor([[0]])
    >>> memory, cache = traced(model, lambda: model.encode(torch.tensor([[5, 6, 7]]))).output, model.cache()
    >>> traced(model, lambda: model.decode(start, memory, cache=cache)).steps[-1].named_shape
    '[B=1, L=1, V=100]'
    """
    teller = Recorder(values)
    with watching(model, teller):
        output = run()
    return Trace(tuple(teller.steps), output)


@contextlib.contextmanager
def watching(model: nn.Module, teller: Recorder) -> Iterator[None]:
    """Tells a teller every step that a model takes inside the block."""
    with keep_outputs(), uncompiled(model) as module, _Watcher(teller).hooks(module):
        yield


@contextlib.contextmanager
def uncompiled(model: nn.Module) -> Iterator[nn.Module]:
    """The module that a compiled one wraps; what is compiled runs as it is written inside the block, for nobody can
    look into a compiled one."""
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # which takes a second to import; before, nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield getattr(model, "_orig_mod", model)


class _Watcher:
    """Turns what the hooks see into steps."""

    def __init__(self, teller: Recorder) -> None:
        self.teller = teller
        # source and target may share their tokens: the path is that of the embedding that is running
        self._embedding: tuple[str, Embedding] | None = None

    # the model itself runs under whatever gradient mode the caller has: another one could choose another kernel
    @contextlib.contextmanager
    def hooks(self, model: nn.Module) -> Iterator[None]:
        """Hooks on every module that has something to tell, taken off at the end."""
        with contextlib.ExitStack() as stack:
            for path, module in model.named_modules():
                for handle in self._hook(model, path, module):
                    stack.callback(handle.remove)
            yield

    def _hook(self, model: nn.Module, path: str, module: nn.Module) -> Iterator[RemovableHandle]:
        above, _, name = path.rpartition(".")
        parent = model.get_submodule(above) if path else None
        kind = operations.operation_of(parent, name, module)
        if isinstance(module, MultiHeadAttention):
            yield from SelfReplay(self.teller, path, module).hooks()
        elif isinstance(module, CrossAttention):
            yield from CrossReplay(self.teller, path, module).hooks()
        elif isinstance(module, PostNorm):
            # what reaches the norm is the sum
            yield module.norm.register_forward_pre_hook(partial(self._before, dotted(path, "add"), operations.ADD))
        elif isinstance(module, PreNorm):
            yield module.register_forward_hook(partial(self._after, dotted(path, "add"), operations.ADD))
        elif isinstance(module, GatedFeedForward):
            yield module.dropout.register_forward_pre_hook(partial(self._before, dotted(path, "gate"), operations.GATE))
        elif isinstance(module, Embedding):
            yield module.register_forward_pre_hook(partial(self._before_embedding, path))
        elif isinstance(module, TokenEmbedding):
            yield module.register_forward_hook(partial(self._after_tokens, path))
        elif kind is not None:
            if isinstance(module, OutputProjection) and module.scale:
                yield module.register_forward_pre_hook(partial(self._before_logits, path))
            yield module.register_forward_hook(partial(self._after, path, kind))

    def _before(self, path: str, kind: Operation, module: nn.Module, inputs: Any) -> None:
        self.teller.tell(path, kind, inputs[0])

    def _after(self, path: str, kind: Operation, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.teller.tell(path, kind, output, module)

    def _before_embedding(self, path: str, module: nn.Module, inputs: Any) -> None:
        assert isinstance(module, Embedding)
        self._embedding = path, module

    @torch.no_grad()
    def _after_tokens(self, path: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        within, whole = self._embedding or ("", None)
        self.teller.tell(path if whole is None else dotted(within, "tokens"), operations.TOKENS, output, module)
        if whole is not None and whole.scale:
            scaled = embedding.scale_embeddings(self.teller.seen(output))
            self.teller.tell(dotted(within, "scale"), operations.SCALE, scaled)

    @torch.no_grad()
    def _before_logits(self, path: str, module: nn.Module, inputs: Any) -> None:
        scaled = embedding.scale_hidden(self.teller.seen(inputs[0]))
        self.teller.tell(dotted(path, "scale"), operations.SCALE_DOWN, scaled)
