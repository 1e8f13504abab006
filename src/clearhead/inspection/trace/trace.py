"""Trace a forward pass: the equation, the named shape and the statistics of every step.

Hooks on the modules record the steps; the model itself does not change. The explicit equations replay the steps of
attention that a fused kernel hides, from the recorded projections. Without statistics they replay shapes only.
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
from clearhead.inspection.trace.attention_replay import CrossReplay, DisentangledReplay, SelfReplay
from clearhead.inspection.trace.records import Operation, Recorder, Trace, join_path
from clearhead.kernels.native import unfused
from clearhead.layers.attention import CrossAttention, MultiHeadAttention
from clearhead.layers.disentangled_attention import DisentangledAttention
from clearhead.layers.embedding import Embedding, OutputProjection, TokenEmbedding
from clearhead.layers.feedforward import GatedFeedForward
from clearhead.layers.residual import PostNorm, PreNorm


def trace(model: nn.Module, *inputs: Any, values: bool = False) -> Trace:
    """Run a model once and record every step.

    Output, mode and weights of the model do not change. In training mode the steps include the dropout of the run,
    except that of attention weights. A compiled model runs uncompiled.

    Args:
        model: a module of this library, or a module that contains some.
        *inputs: arguments of the model.
        values: compute mean, standard deviation, minimum and maximum of each step.

    Returns:
        The trace, with `steps` and the `output` of the model.

    >>> import torch; from clearhead import Encoder, trace
    >>> trace(Encoder(512, 2048, 8, 0.1, 5), torch.rand(2, 10, 512)).steps[2].named_shape
    '[B=2, H=8, Lq=10, Lk=10]'
    """
    return traced(model, lambda: model(*inputs), values=values)


def traced(model: nn.Module, run: Callable[[], Any], *, values: bool = False) -> Trace:
    """Record every step of a model while a function runs, such as `encode` or a step of a search.

    Args:
        model: as in `trace`.
        run: a function that calls the model.
        values: as in `trace`.

    Returns:
        The trace, with `steps` and the `output` of `run`.

    >>> import torch; from clearhead import Seq2Seq, Seq2SeqConfig, traced
    >>> model, start = Seq2Seq(Seq2SeqConfig(vocab_size=100)), torch.tensor([[0]])
    >>> memory, cache = traced(model, lambda: model.encode(torch.tensor([[5, 6, 7]]))).output, model.cache()
    >>> traced(model, lambda: model.decode(start, memory, cache=cache)).steps[-1].named_shape
    '[B=1, L=1, V=100]'
    """
    recorder = Recorder(values)
    with recording(model, recorder):
        output = run()
    return Trace(tuple(recorder.steps), output)


@contextlib.contextmanager
def recording(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Record every step of a model inside the block."""
    with keep_outputs(), unfused(), uncompiled(model) as module, _ModuleHooks(recorder).hooks(module):
        yield


@contextlib.contextmanager
def uncompiled(model: nn.Module) -> Iterator[nn.Module]:
    """Run compiled models as eager ones inside the block, so that hooks can observe them; yield the module inside."""
    with contextlib.ExitStack() as stack:
        # set_stance imports torch._dynamo, which takes a second; a model is compiled only if that is loaded
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield getattr(model, "_orig_mod", model)  # the name that torch.compile documents for the original module


class _ModuleHooks:
    """Hooks that record the steps of a model."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        # source and target may share a token embedding: its path is that of the embedding that runs
        self._embedding: tuple[str, Embedding] | None = None

    # the gradient mode of the caller stays, because it may select the kernel
    @contextlib.contextmanager
    def hooks(self, model: nn.Module) -> Iterator[None]:
        """Register hooks on every module that has steps, and remove them at the end."""
        with contextlib.ExitStack() as stack:
            for path, module in model.named_modules():
                for handle in self._register(model, path, module):
                    stack.callback(handle.remove)
            yield

    def _register(self, model: nn.Module, path: str, module: nn.Module) -> Iterator[RemovableHandle]:
        parent_path, _, name = path.rpartition(".")
        parent = model.get_submodule(parent_path) if path else None
        operation = operations.operation_of(parent, name, module)
        if isinstance(module, MultiHeadAttention):
            yield from SelfReplay(self.recorder, path, module).hooks()
        elif isinstance(module, DisentangledAttention):
            yield from DisentangledReplay(self.recorder, path, module).hooks()
        elif isinstance(module, CrossAttention):
            yield from CrossReplay(self.recorder, path, module).hooks()
        elif isinstance(module, PostNorm):
            # the input of the norm is the sum
            yield module.norm.register_forward_pre_hook(partial(self._before, join_path(path, "add"), operations.ADD))
        elif isinstance(module, PreNorm):
            yield module.register_forward_hook(partial(self._after, join_path(path, "add"), operations.ADD))
        elif isinstance(module, GatedFeedForward):
            yield module.dropout.register_forward_pre_hook(
                partial(self._before, join_path(path, "gate"), operations.GATE)
            )
        elif isinstance(module, Embedding):
            yield module.register_forward_pre_hook(partial(self._before_embedding, path))
        elif isinstance(module, TokenEmbedding):
            yield module.register_forward_hook(partial(self._after_tokens, path))
        elif operation is not None:
            if isinstance(module, OutputProjection) and module.scale:
                yield module.register_forward_pre_hook(partial(self._before_logits, path))
            yield module.register_forward_hook(partial(self._after, path, operation))

    def _before(self, path: str, operation: Operation, module: nn.Module, inputs: Any) -> None:
        self.recorder.record(path, operation, inputs[0])

    def _after(self, path: str, operation: Operation, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.recorder.record(path, operation, output, module)

    def _before_embedding(self, path: str, module: nn.Module, inputs: Any) -> None:
        assert isinstance(module, Embedding)
        self._embedding = path, module

    @torch.no_grad()
    def _after_tokens(self, path: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        embedding_path, parent = self._embedding or ("", None)
        if parent is None:
            self.recorder.record(path, operations.TOKENS, output, module)
            return
        operation = operations.in_embedding(operations.TOKENS, parent)
        self.recorder.record(join_path(embedding_path, "tokens"), operation, output, module)
        if parent.scale:
            scaled = embedding.scale_embeddings(self.recorder.detach(output))
            operation = operations.in_embedding(operations.SCALE_EMBEDDINGS, parent)
            self.recorder.record(join_path(embedding_path, "scale"), operation, scaled)

    @torch.no_grad()
    def _before_logits(self, path: str, module: nn.Module, inputs: Any) -> None:
        scaled = embedding.scale_hidden(self.recorder.detach(inputs[0]))
        self.recorder.record(join_path(path, "scale"), operations.SCALE_HIDDEN, scaled)
