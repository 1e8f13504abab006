"""The models that are served: their names, and what each can do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, nn

from clearhead.checkpoints import checkpoint_type
from clearhead.io import hub
from clearhead.pipelines.auto import Pipeline, load_pipeline
from clearhead.pipelines.question_answerer import QuestionAnswerer
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.serve.handlers.base import Handler, Name
from clearhead.serve.handlers.encoder import Answer, Classify, Embed
from clearhead.serve.handlers.generation import Translate, WriteAnswer, summarizer
from clearhead.serve.handlers.report import View
from clearhead.serve.metrics import Part
from clearhead.serve.settings import Settings
from clearhead.stacks.decoder import Decoder
from clearhead.stacks.encoder import Encoder

Step = Callable[[Part, int], None]
"""Told of each pass through an encoder or a decoder, with its tokens; what it raises ends the computation."""


@dataclass(frozen=True)
class BatchKey:
    """What jobs have in common that are computed together."""

    model: str
    use: Name
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """A model that shall be loaded.

    Args:
        name: what clients call it.
        place: a folder or a Hub id.
        uses: what an encoder–decoder is for; None for what its checkpoint says.
    """

    name: str
    place: str
    uses: tuple[Name, ...] | None


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model.

    Args:
        name: what clients call it.
        uses: what it can do.
    """

    name: str
    uses: dict[Name, Handler]

    def perform(self, key: BatchKey, payloads: Sequence[Any]) -> Sequence[Any]:
        """What comes of some jobs of a key, in their order."""
        return self.uses[key.use].perform(payloads, **dict(key.options))


def asked(settings: Settings) -> list[ModelSpec]:
    """The models that the settings name.

    Raises:
        ValueError: two of one name, or a use that there is not, or of a model that there is not.
    """
    uses = dict(map(_uses, settings.uses))
    found = [_asked(given, uses) for given in settings.models]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two models are called {name!r}; write --model NAME=MODEL to call one something else")
    for name in uses:
        if name not in names:
            raise ValueError(f"no model is called {name!r}, whose uses are told; these are: {', '.join(names)}")
    return found


def _asked(given: str, uses: dict[str, tuple[Name, ...]]) -> ModelSpec:
    name, place = given, given
    if Path(given).expanduser().is_dir():
        # where it lies is nothing to clients
        name = Path(given).expanduser().resolve().name
    elif "=" in given:
        name, _, place = given.partition("=")
    return ModelSpec(name, place, uses.get(name))


def _uses(given: str) -> tuple[str, tuple[Name, ...]]:
    name, _, said = given.partition("=")
    known = [use for use in get_args(Name) if use in ("translate", "summarize", "answer")]
    chosen = tuple(use for use in known if use in said.split(","))
    if not chosen or len(chosen) != len(said.split(",")):
        raise ValueError(f"NAME=USE,USE is wanted, of {', '.join(known)}; got {given!r}")
    return name, chosen


def load(one: ModelSpec, settings: Settings, step: Step) -> LoadedModel:
    """A model, which tells `step` of each of its passes.

    Raises:
        ValueError: no such model, or one that is not understood; uses for one that has no choice.
    """
    folder = hub.resolve_model(one.place)
    if one.uses and checkpoint_type(folder) != "seq2seq":
        raise ValueError("its uses cannot be chosen: it is no encoder–decoder")
    pipeline = load_pipeline(folder, precision=settings.precision, device=settings.device)
    pipeline.name = one.name  # clients must not see the path of a folder
    _tell(pipeline, step)
    uses: dict[Name, Handler]
    match pipeline:
        case TextToText():
            uses = _generating(pipeline, settings.generated_tokens, one.uses)
            uses |= {"view": View(one.name, pipeline)}
        case TextClassifier():
            uses = {"classify": Classify(pipeline)}
        case QuestionAnswerer():
            uses = {"answer": Answer(pipeline)}
        case TextEncoder():
            uses = {"embed": Embed(pipeline), "view": View(one.name, pipeline)}
    return LoadedModel(one.name, uses)


def _generating(made: TextToText, most: int, told: tuple[Name, ...] | None) -> dict[Name, Handler]:
    """What an encoder–decoder is for: what the operator says, else the tasks in its config.json, else translation."""
    able: dict[Name, Handler] = {
        "translate": Translate(made, most),
        "summarize": summarizer(made, most),
        "answer": WriteAnswer(made, most),
    }
    begin: dict[Name, str] = {"translate": "translation", "summarize": "summarization"}
    described = [use for use, word in begin.items() if any(task.startswith(word) for task in made.prompts.tasks)]
    chosen = told or described or ("translate",)
    return {use: do for use, do in able.items() if use in chosen}


def _tell(made: Pipeline, step: Step) -> None:
    """Has a model tell of each pass through its stacks; so a search can be counted, and ended, from outside."""
    parts: dict[type[nn.Module], Part] = {Encoder: "encoder", Decoder: "decoder"}

    def hook(part: Part) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, given: step(part, given[0].shape[0] * given[0].shape[1])

    # what computes, and the weights in float32 of which pages are made; often they are one
    modules = {id(module): module for model in (made.inference_model, made.model) for module in _modules(model)}
    for module in modules.values():
        if type(module) in parts:
            module.register_forward_pre_hook(hook(parts[type(module)]))


def _modules(model: object) -> list[nn.Module]:
    return list(model.modules()) if isinstance(model, nn.Module) else []
