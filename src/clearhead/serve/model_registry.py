"""Names, tasks and handlers of the models that the server loads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clearhead.checkpoints import checkpoint_type
from clearhead.io import hub
from clearhead.pipelines.auto import Pipeline, load_pipeline
from clearhead.pipelines.text_to_text import TextToText
from clearhead.retrieval.index import Index
from clearhead.retrieval.manifest import is_index
from clearhead.runtime.int8.seq2seq import FusedDecoder
from clearhead.runtime.precision import strict_precision
from clearhead.serve.handlers import HANDLERS
from clearhead.serve.handlers.base import Handler
from clearhead.serve.handlers.generation import GenerationHandler
from clearhead.serve.handlers.search import SearchHandler
from clearhead.serve.metrics import StackName
from clearhead.serve.schemas import Options
from clearhead.serve.settings import Settings
from clearhead.stacks.decoder import Decoder
from clearhead.stacks.encoder import Encoder

PassCallback = Callable[[StackName, int], None]
"""Called before each pass through an encoder or decoder stack with its number of tokens. An exception cancels it."""

_DEFAULT_TASK = "translate"
"""Task of an encoder–decoder whose checkpoint lists none."""


@dataclass(frozen=True)
class BatchKey:
    """Model, task and options that all jobs of a batch share."""

    model: str
    task: str
    options: Options = ()


@dataclass(frozen=True)
class ModelSpec:
    """A model to load.

    Args:
        name: name of the model in the API.
        source: a folder or a Hub id.
        tasks: tasks of an encoder–decoder; None for those that its checkpoint lists.
        adapter: as in `TextEncoder.from_pretrained`.
    """

    name: str
    source: str
    tasks: tuple[str, ...] | None
    adapter: str | None


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model.

    Args:
        name: name of the model in the API.
        handlers: the handler of each task that the model supports.
    """

    name: str
    handlers: dict[str, Handler[Any, Any]]

    def run(self, key: BatchKey, payloads: Sequence[Any]) -> Sequence[Any]:
        """Compute the jobs of a batch and return their results in order."""
        return self.handlers[key.task].run(payloads, **dict(key.options))


def model_specs(settings: Settings) -> list[ModelSpec]:
    """Return the models that the settings name.

    Raises:
        ValueError: two models have the same name, or a task or the model of a task or adapter is unknown.
    """
    tasks, adapters = dict(map(_parse_tasks, settings.tasks)), dict(map(_parse_adapter, settings.adapters))
    specs = [_parse_model(model, tasks, adapters) for model in settings.models]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two models are named {name!r}; write --model NAME=MODEL to give one another name")
    for option, given in (("--task", tasks), ("--adapter", adapters)):
        for name in given:
            if name not in names:
                raise ValueError(f"{option} names the model {name!r}, which is not loaded; loaded: {', '.join(names)}")
    return specs


def _parse_model(argument: str, tasks: dict[str, tuple[str, ...]], adapters: dict[str, str]) -> ModelSpec:
    name, source = argument, argument
    if Path(argument).expanduser().is_dir():
        name = Path(argument).expanduser().resolve().name  # clients must not see the path
    elif "=" in argument:
        name, _, source = argument.partition("=")
        if not name or not source:
            raise ValueError(f"--model expects MODEL or NAME=MODEL; got {argument!r}")
    return ModelSpec(name, source, tasks.get(name), adapters.get(name))


def _parse_adapter(argument: str) -> tuple[str, str]:
    name, _, adapter = argument.partition("=")
    if not name or not adapter:
        raise ValueError(f"--adapter expects NAME=ADAPTER; got {argument!r}")
    return name, adapter


def _parse_tasks(argument: str) -> tuple[str, tuple[str, ...]]:
    name, _, listed = argument.partition("=")
    known = [handler.task for handler in HANDLERS if issubclass(handler, GenerationHandler)]
    tasks = tuple(task for task in known if task in listed.split(","))
    if not tasks or len(tasks) != len(listed.split(",")):
        raise ValueError(f"--task expects NAME=TASK,TASK with tasks from {', '.join(known)}; got {argument!r}")
    return name, tasks


def load_model(spec: ModelSpec, settings: Settings, on_pass: PassCallback) -> LoadedModel:
    """Load a model and create the handlers of its tasks.

    Args:
        spec: the model.
        settings: settings of the server.
        on_pass: called before each forward pass.

    Raises:
        ValueError: the model is missing or not supported, or tasks are given for a model other than an encoder–decoder.
    """
    if is_index(Path(spec.source).expanduser()):
        return _load_index(spec, settings, on_pass)
    folder = hub.resolve_model(spec.source)
    if spec.tasks and checkpoint_type(folder) != "seq2seq":
        raise ValueError("--task is only for encoder–decoders")
    with strict_precision(settings.strict):
        pipeline = load_pipeline(folder, precision=settings.precision, device=settings.device, adapter=spec.adapter)
    pipeline.name = spec.name  # clients must not see the path
    _add_pass_hooks(pipeline, on_pass)
    supported = [handler for handler in HANDLERS if isinstance(pipeline, handler.pipeline_types)]
    if isinstance(pipeline, TextToText):
        tasks = spec.tasks or _default_tasks(pipeline)
        supported = [cls for cls in supported if cls.task in tasks or not issubclass(cls, GenerationHandler)]
    return LoadedModel(spec.name, {handler.task: handler(pipeline, settings) for handler in supported})


def _load_index(spec: ModelSpec, settings: Settings, on_pass: PassCallback) -> LoadedModel:
    """Open an index with the model that made it."""
    if spec.tasks:
        raise ValueError("--task is only for encoder–decoders")
    if spec.adapter:
        raise ValueError("--adapter is not for an index, which has its own adapters")
    precision = None if settings.precision == "auto" else settings.precision
    with strict_precision(settings.strict):
        index = Index.open(Path(spec.source).expanduser(), precision=precision, device=settings.device)
    encoder = index.query_encoder
    index.name = encoder.name = spec.name  # clients must not see the path
    _add_pass_hooks(encoder, on_pass)
    return LoadedModel(spec.name, {SearchHandler.task: SearchHandler(index, settings)})


def _default_tasks(pipeline: TextToText) -> list[str]:
    generation = [handler for handler in HANDLERS if issubclass(handler, GenerationHandler)]
    return [handler.task for handler in generation if handler.is_default(pipeline)] or [_DEFAULT_TASK]


def _add_pass_hooks(pipeline: Pipeline, on_pass: PassCallback) -> None:
    """Call a function before each pass through a stack, to count tokens and to cancel a search from outside."""
    stacks: dict[type[nn.Module], StackName] = {Encoder: "encoder", Decoder: "decoder", FusedDecoder: "decoder"}

    def hook(stack: StackName) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, inputs: on_pass(stack, inputs[0].shape[0] * inputs[0].shape[1])

    # the inference copy, and the float32 model that reports use; they may be the same
    modules = {id(module): module for model in (pipeline.inference_model, pipeline.model) for module in _modules(model)}
    for module in modules.values():
        if type(module) in stacks:
            module.register_forward_pre_hook(hook(stacks[type(module)]))


def _modules(model: object) -> list[nn.Module]:
    return list(model.modules()) if isinstance(model, nn.Module) else []
