"""Text to text: translation, summaries, answers in words, and whatever else turns one text into another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from torch import nn

from clearhead import checkpoints
from clearhead.checkpoints import load_tokenizer
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.data.records import Records, Row
from clearhead.generation.config import GenerationConfig
from clearhead.generation.config_files import load_generation_config
from clearhead.io import hub
from clearhead.models.freezing import freeze
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.text_to_text import TextToText
from clearhead.tokenizers.base import TextTokenizer
from clearhead.train.recipe.recipe import Files, Recipe, TextToTextObjective
from clearhead.train.tasks import initialize
from clearhead.train.tasks.augmentation import Ids, augmented
from clearhead.train.tasks.base import Batch, Example, Task, TokenPredictions, lengths_mask, padded, padding_mask


class TextToTextTask(Task[Seq2Seq]):
    """Teacher forcing: all positions of the target are guessed at once, each from the ones before it.

    Equation: L = − Σ_i ln P(t_i | t_<i, s)
    Source: Section 3 of "Attention Is All You Need"

    Args:
        recipe: the run's.
        model: the encoder–decoder.
        tokenizer: its tokenizer.
        family: whose folders it is written in.
        settings: how it will generate.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Seq2Seq,
        tokenizer: TextTokenizer,
        family: Seq2SeqFamily,
        settings: GenerationConfig,
    ) -> None:
        super().__init__()
        self.recipe, self.model, self.tokenizer, self.family = recipe, model, tokenizer, family
        self.objective: TextToTextObjective = recipe.objective
        directed = tokenizer.for_languages(self.objective.source_lang, self.objective.target_lang)
        self._reader = directed.tokenizer
        self._start = model.config.start_id if directed.start_id is None else directed.start_id
        forced = directed.forced_bos_token_id
        self.settings = settings if forced is None else replace(settings, forced_bos_token_id=forced)
        self._first = () if forced is None else (forced,)
        self.fields = fields_of(recipe.data.train)
        self.scores = (
            tuple(name for asked in recipe.validation.scores for name in _NAMES[asked])
            if recipe.data.validation is not None
            else ()
        )
        self._held_out: tuple[list[str], list[str]] | None = None

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "TextToTextTask":
        """The task as training starts."""
        model, family, tokenizer = initialize.seq2seq(recipe, folder, fields_of(recipe.data.train))
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family, _settings(recipe, model))

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        longest = initialize.longest(self.recipe.data.max_length, self.tokenizer.max_length, self.model.config.max_len)
        most = initialize.longest(self.recipe.data.max_target_length, None, self.model.config.max_len)
        sources = self._reader.encode([self.source(row.values) for row in rows], longest)
        self.cut += sum(tokens.truncated for tokens in sources)
        made: list[list[Example]] = []
        for tokens, row in zip(sources, rows, strict=True):
            target = self.tokenizer.target_ids(target_of(row.values))
            if not target or not source_of(row.values):
                made.append([{"source": [], "target": []}])  # counted as an example without tokens
                continue
            ids = [*self._first, *target, self.model.config.eos_ids[0]]
            if len(ids) <= most:
                made.append([{"source": tokens.ids, "target": ids}])
                continue
            if self.recipe.data.strict:
                raise ValueError(f"{row.location}: the target has {len(ids)} tokens; {most} are the most")
            self.longer += 1
            made.append([])
        return made

    def fields_of(self, source: Files) -> tuple[str, ...]:
        return fields_of(source)

    def source(self, values: Mapping[str, str]) -> str:
        """What the encoder reads of a row."""
        return self.objective.prefix + source_of(values)

    def collate(self, examples: Sequence[Example], draws: np.random.Generator, *, learning: bool) -> Batch:
        config = self.model.config
        sources: Sequence[Ids] = [example["source"] for example in examples]
        if learning:
            told = self.recipe.regularize.augmentation
            sources = augmented(sources, told, draws, self.tokenizer, config.vocab_size)
        targets = [np.asarray(example["target"]) for example in examples]
        lengths = [len(target) for target in targets]
        return Batch(
            {
                "source": padded(sources, config.pad_id),
                "source_keep": lengths_mask([len(source) for source in sources]),
                "given": padded([np.append(self._start, target[:-1]) for target in targets], config.pad_id),
                "wanted": padded(targets, config.pad_id),
                "target_keep": lengths_mask(lengths),
            },
            count=sum(lengths),
            tokens=sum(lengths) + sum(len(source) for source in sources),
        )

    def guess(self, model: nn.Module, batch: Batch, *, masked: bool) -> TokenPredictions:
        assert isinstance(model, Seq2Seq)
        # the target is padded on its right: causality hides that from every real position
        hidden = model.hidden(batch["source"], batch["given"], padding_mask(batch["source_keep"], masked))
        keep = batch["target_keep"]
        return TokenPredictions(hidden[keep], model.output, batch["wanted"][keep])

    def validate(self) -> dict[str, float]:
        asked = self.recipe.validation
        if not asked.scores:
            return {}
        if self._held_out is None:
            self._held_out = self._references()
        sources, references = self._held_out
        writer = self.writer()
        found = writer.generate(
            sources,
            source_lang=self.objective.source_lang,
            target_lang=self.objective.target_lang,
            beam_size=asked.beam_size,
            max_new_tokens=asked.max_new_tokens,
        )
        scores: dict[str, float] = {}
        for name in asked.scores:
            scores |= _SCORERS[name](found, references)
        return scores

    def writer(self) -> TextToText:
        """The model as it is now, as people use it."""
        return TextToText(
            self.model,
            self.tokenizer,
            self.family,
            self.settings,
            precision=self.recipe.training.precision,
            device=str(next(self.model.parameters()).device),
        )

    def save(self, folder: Path) -> None:
        writer = TextToText(self.model, self.tokenizer, self.family, self.settings, precision="float32", device="cpu")
        writer.save_pretrained(folder)

    def key(self) -> str:
        return initialize.fingerprint(self._reader, [self.objective.prefix, self._first, self.model.config.max_len])

    def teacher(self, name: str) -> nn.Module:
        found = hub.resolve_model(name)
        model, family = checkpoints.load_seq2seq(found)
        initialize.check_alike(name, self.tokenizer, load_tokenizer(found, family.model_type))
        initialize.check_width(name, self.recipe, self.model.config.d_model, model.config.d_model)
        return model

    def _references(self) -> tuple[list[str], list[str]]:
        data = self.recipe.data
        assert data.validation is not None
        fields = fields_of(data.validation)
        records = Records(data.validation, fields=fields, columns=data.columns, encoding=data.encoding)
        rows = list(islice(records, self.recipe.validation.examples))
        return [self.source(row.values) for row in rows], [target_of(row.values) for row in rows]


def _settings(recipe: Recipe, model: Seq2Seq) -> GenerationConfig:
    """How a model will generate: as the recipe says, else as the checkpoint does that it starts from."""
    objective: TextToTextObjective = recipe.objective
    settings = GenerationConfig(beam_size=5)
    if recipe.model.start is not None:
        settings = load_generation_config(hub.resolve_model(recipe.model.start))
    if objective.beam_size is not None:
        settings = replace(settings, beam_size=objective.beam_size)
    if objective.length_penalty is not None:
        settings = replace(settings, length_penalty=objective.length_penalty)
    if settings.max_length is None and settings.max_new_tokens is None:
        # said, for transformers stops after 20 tokens where nothing is
        settings = replace(settings, max_length=settings.max_target_length(1, model.config.max_len))
    return settings


def fields_of(files: Files) -> tuple[str, ...]:
    """The fields of a row: source and target, or SQuAD's."""
    listed = files if isinstance(files, list) else [files]
    if any(isinstance(file, str) and file.endswith((".json", ".json.gz")) for file in listed):
        return ("question", "context", "answer")
    return ("source", "target")


def source_of(values: Mapping[str, str]) -> str:
    """The source of a row; a question with its context is put as T5 was taught (Raffel et al. 2020, Appendix D.15)."""
    if "question" in values:
        return f"question: {values['question'].strip()} context: {values['context'].strip()}"
    return values["source"].strip()


def target_of(values: Mapping[str, str]) -> str:
    """The target of a row."""
    return values["answer" if "answer" in values else "target"].strip()


def _bleu(found: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from clearhead.metrics.bleu import translation_scores

    return {"bleu": translation_scores(found, [references]).bleu}


def _chrf(found: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from clearhead.metrics.bleu import translation_scores

    return {"chrf": translation_scores(found, [references]).chrf}


def _rouge(found: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from clearhead.metrics.rouge import summary_scores

    scores = summary_scores(found, [references])
    return {"rouge1": scores.rouge1, "rouge2": scores.rouge2, "rouge_l": scores.rouge_l}


def _answers(found: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from clearhead.metrics.squad import exact_match, f1

    pairs = list(zip(found, references, strict=True))
    return {
        "exact_match": 100 * float(np.mean([exact_match(one, [other]) for one, other in pairs])),
        "f1": 100 * float(np.mean([f1(one, [other]) for one, other in pairs])),
    }


_SCORERS: dict[str, Callable[[Sequence[str], Sequence[str]], dict[str, float]]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "rouge": _rouge,
    "answers": _answers,
}
_NAMES = {
    "bleu": ("bleu",),
    "chrf": ("chrf",),
    "rouge": ("rouge1", "rouge2", "rouge_l"),
    "answers": ("exact_match", "f1"),
}
