"""Text to text: translation, summarization, generative question answering, and other sequence-to-sequence tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from torch import nn

from clearhead import checkpoints
from clearhead.checkpoints import load_tokenizer
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.data.records import Row
from clearhead.generation.config import GenerationConfig
from clearhead.generation.config_files import load_generation_config
from clearhead.io import hub
from clearhead.models.freezing import freeze
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.text_to_text import TextToText
from clearhead.tokenizers.base import TextTokenizer
from clearhead.train.data.files import open_records
from clearhead.train.recipe.errors import RecipeError, named
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import Count, Files, Section
from clearhead.train.regularizers.augmentation import Ids, augment
from clearhead.train.tasks import initialize
from clearhead.train.tasks.base import Batch, Example, Task, TaskEntry, keep_mask, pad, padding_mask
from clearhead.train.tasks.predictions import TokenPredictions
from clearhead.train.tasks.samples import output_lines, spread

_PROBE = "Wer 9 alte Häuser sieht, fragt: how quickly can 54 boxes jump over a lazy dog?"
"""A text whose tokens differ between vocabularies."""

_SAMPLE_TOKENS = 64
"""Maximum length of the output of a sample: one line is shown, and an untrained model generates without end."""


class TextToTextObjective(Section):
    """Settings of text-to-text.

    Args:
        prefix: text before each source, such as "summarize: ".
        source_lang: language of the sources, for multilingual models.
        target_lang: language of the targets, for multilingual models.
        length_penalty: default for generation, saved with the model. Defaults to that of model.init_from, else 1.
        beam_size: default for generation, saved with the model. Defaults to that of model.init_from, else 5.
        sampled_softmax: number of random tokens in the softmax of the training loss and of its teachers, in addition
            to the targets of the batch (Jean et al. 2015). Defaults to all tokens. Saves time if the vocabulary is
            large for the model's width.
    """

    prefix: str = ""
    source_lang: str | None = None
    target_lang: str | None = None
    length_penalty: float | None = None
    beam_size: Count | None = None
    sampled_softmax: Count | None = None


class TextToTextTask(Task[Seq2Seq]):
    """Text to text by teacher forcing: predict all positions of the target at once, each from the ones before it.

    Equation: L = − Σ_i ln P(t_i | t_<i, s)
    Source: Section 3 of "Attention Is All You Need"

    Args:
        recipe: the recipe.
        model: the encoder–decoder.
        tokenizer: its tokenizer.
        family: model family whose format the model is saved in.
        generation_config: defaults for generation.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Seq2Seq,
        tokenizer: TextTokenizer,
        family: Seq2SeqFamily,
        generation_config: GenerationConfig,
    ) -> None:
        super().__init__()
        self.recipe, self.model, self.tokenizer, self.family = recipe, model, tokenizer, family
        self.objective: TextToTextObjective = recipe.objective
        languages = tokenizer.for_languages(self.objective.source_lang, self.objective.target_lang)
        self._source_tokenizer = languages.tokenizer
        self._start_id = model.config.start_id if languages.start_id is None else languages.start_id
        forced_id = languages.forced_bos_token_id
        if forced_id is not None:
            generation_config = replace(generation_config, forced_bos_token_id=forced_id)
        self.generation_config = generation_config
        self._forced_prefix = () if forced_id is None else (forced_id,)
        self.fields = row_fields(recipe.data.train)
        self.metrics = (
            tuple(column for name in recipe.validation.metrics for column in _METRICS[name][0])
            if recipe.data.validation is not None
            else ()
        )
        self._held_out: tuple[list[str], list[str]] | None = None
        augmentation = recipe.regularize.augmentation
        if augmentation is not None and augmentation.bidirectional:
            self._check_reversible()

    @classmethod
    def from_recipe(cls, recipe: Recipe, folder: Path) -> "TextToTextTask":
        """Return the task with its initialized model."""
        model, family, tokenizer = initialize.initialize_seq2seq(recipe, folder, row_fields(recipe.data.train))
        for part in recipe.model.freeze:
            freeze(model, part)
        return cls(recipe, model.train(), tokenizer, family, _generation_config(recipe, model))

    def examples(self, rows: Sequence[Row]) -> list[list[Example]]:
        data, config = self.recipe.data, self.model.config
        max_length = initialize.smallest(data.max_length, self.tokenizer.max_length, config.max_len)
        max_target_length = initialize.smallest(data.max_target_length, None, config.max_len)
        sources = self._source_tokenizer.encode([self.source(row.values) for row in rows], max_length)
        self.num_truncated += sum(source.truncated for source in sources)
        examples: list[list[Example]] = []
        for source, row in zip(sources, rows, strict=True):
            target = self.tokenizer.target_ids(target_text(row.values))
            if not target or not source_text(row.values):
                examples.append([{"source": [], "target": []}])  # counted as an example without tokens
                continue
            ids = [*self._forced_prefix, *target, config.eos_ids[0]]
            if len(ids) <= max_target_length:
                examples.append([{"source": source.ids, "target": ids}])
                continue
            if data.strict:
                raise ValueError(
                    f"{row.location}: the target has {len(ids)} tokens; the maximum is {max_target_length}"
                )
            self.num_too_long += 1
            examples.append([])
        return examples

    def _check_reversible(self) -> None:
        """Check that a text has the same tokens as a source and as a target."""
        source, target = self._source_tokenizer.encode([_PROBE], None)[0].ids, self.tokenizer.target_ids(_PROBE)
        if list(source) != [*self._forced_prefix, *target, self.model.config.eos_ids[0]]:
            raise RecipeError(
                "regularize.augmentation.bidirectional: sources and targets of this model have different vocabularies "
                "or special tokens, so that a pair cannot be reversed; set it to 0"
            )

    def fields_of(self, files: Files) -> tuple[str, ...]:
        return row_fields(files)

    def source(self, values: Mapping[str, str]) -> str:
        """Return the encoder's input text of a row."""
        return self.objective.prefix + source_text(values)

    def collate(self, examples: Sequence[Example], generator: np.random.Generator, *, training: bool) -> Batch:
        config = self.model.config
        sources: Sequence[Ids] = [example["source"] for example in examples]
        if training:
            settings = self.recipe.regularize.augmentation
            sources = augment(sources, settings, generator, self.tokenizer, config.vocab_size)
        targets = [np.asarray(example["target"]) for example in examples]
        lengths = [len(target) for target in targets]
        return Batch(
            {
                "source": pad(sources, config.pad_id),
                "source_keep": keep_mask([len(source) for source in sources]),
                "decoder_input": pad([np.append(self._start_id, target[:-1]) for target in targets], config.pad_id),
                "targets": pad(targets, config.pad_id),
                "target_keep": keep_mask(lengths),
            },
            count=sum(lengths),
            num_tokens=sum(lengths) + sum(len(source) for source in sources),
        )

    def predict(self, model: nn.Module, batch: Batch, *, mask_padding: bool) -> TokenPredictions:
        assert isinstance(model, Seq2Seq)
        # the target is padded on the right, so the causal mask already hides its padding
        mask = padding_mask(batch["source_keep"], mask_padding)
        hidden = model.hidden(batch["source"], batch["decoder_input"], mask)
        keep = batch["target_keep"]
        num_sampled = self.objective.sampled_softmax if model.training else None
        return TokenPredictions(hidden[keep], model.output, batch["targets"][keep], num_sampled)

    def validate(self) -> dict[str, float]:
        section = self.recipe.validation
        if not section.metrics:
            return {}
        sources, references = self._sources_and_references()
        outputs = self.pipeline().generate(
            sources,
            source_lang=self.objective.source_lang,
            target_lang=self.objective.target_lang,
            beam_size=section.beam_size,
            max_new_tokens=section.max_new_tokens,
        )
        scores: dict[str, float] = {}
        for name in section.metrics:
            _, score = _METRICS[name]
            scores |= score(outputs, references)
        return scores

    def samples(self) -> list[str]:
        section, (sources, references) = self.recipe.validation, self._sources_and_references()
        pairs = spread([pair for pair in zip(sources, references, strict=True) if all(pair)])
        outputs = self.pipeline().generate_iter(  # unlike `generate`, without a warning of truncated texts
            [source for source, _ in pairs],
            source_lang=self.objective.source_lang,
            target_lang=self.objective.target_lang,
            beam_size=section.beam_size,
            max_new_tokens=min(section.max_new_tokens, _SAMPLE_TOKENS),
        )
        texts = [output.text for output in outputs]
        return [line for pair, text in zip(pairs, texts, strict=True) for line in output_lines(pair[0], text, pair[1])]

    def pipeline(self) -> TextToText:
        """Return a pipeline with the current model."""
        return TextToText(
            self.model,
            self.tokenizer,
            self.family,
            self.generation_config,
            precision=self.recipe.training.precision,
            device=str(next(self.model.parameters()).device),
        )

    def save(self, folder: Path) -> None:
        pipeline = TextToText(
            self.model, self.tokenizer, self.family, self.generation_config, precision="float32", device="cpu"
        )
        pipeline.save_pretrained(folder)

    def cache_key(self) -> str:
        settings = [self.objective.prefix, self._forced_prefix, self.model.config.max_len]
        return initialize.fingerprint(self._source_tokenizer, settings)

    def load_teacher(self, name: str) -> nn.Module:
        folder = hub.resolve_model(name)
        model, family = checkpoints.load_seq2seq(folder)
        initialize.check_same_tokens(name, self.tokenizer, load_tokenizer(folder, family.model_type))
        own, other = self.model.config, model.config
        initialize.check_width(name, self.recipe, own.d_model, other.d_model)
        if (own.pad_id, own.start_id, own.eos_ids) != (other.pad_id, other.start_id, other.eos_ids):
            raise ValueError(f"the teacher {name} has another padding, start or end token than this model")
        return model

    def _sources_and_references(self) -> tuple[list[str], list[str]]:
        if self._held_out is None:
            data = self.recipe.data
            assert data.validation is not None
            records = open_records(data, data.validation, row_fields(data.validation))
            rows = list(islice(records, self.recipe.validation.max_examples))
            self._held_out = [self.source(row.values) for row in rows], [target_text(row.values) for row in rows]
        return self._held_out


def _generation_config(recipe: Recipe, model: Seq2Seq) -> GenerationConfig:
    """Return the defaults for generation: the recipe's, else the checkpoint's."""
    objective: TextToTextObjective = recipe.objective
    config = GenerationConfig(beam_size=5)
    if recipe.model.init_from is not None:
        config = load_generation_config(hub.resolve_model(recipe.model.init_from))
    if objective.beam_size is not None:
        config = replace(config, beam_size=objective.beam_size)
    if objective.length_penalty is not None:
        config = replace(config, length_penalty=objective.length_penalty)
    if config.max_length is None and config.max_new_tokens is None:
        # without a limit transformers stops after 20 tokens
        with named("model.max_len"):
            config = replace(config, max_length=config.max_target_length(1, model.config.max_len))
    return config


def row_fields(files: Files) -> tuple[str, ...]:
    """Return the fields of a row: source and target, or those of SQuAD."""
    listed = files if isinstance(files, list) else [files]
    if any(isinstance(file, str) and file.endswith((".json", ".json.gz")) for file in listed):
        return ("question", "context", "answer")
    return ("source", "target")


def source_text(values: Mapping[str, str]) -> str:
    """Return the source of a row; question and context in T5's format (Raffel et al. 2020, Appendix D.15)."""
    if "question" in values:
        return f"question: {values['question'].strip()} context: {values['context'].strip()}"
    return values["source"].strip()


def target_text(values: Mapping[str, str]) -> str:
    """Return the target of a row."""
    return values["answer" if "answer" in values else "target"].strip()


def _bleu(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from clearhead.metrics.bleu import translation_scores

    return {"bleu": translation_scores(outputs, [references]).bleu}


def _chrf(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from clearhead.metrics.bleu import translation_scores

    return {"chrf": translation_scores(outputs, [references]).chrf}


def _rouge(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from clearhead.metrics.rouge import summary_scores

    scores = summary_scores(outputs, [references])
    return {"rouge1": scores.rouge1, "rouge2": scores.rouge2, "rouge_l": scores.rouge_l}


def _answers(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    from clearhead.metrics.squad import exact_match, f1

    pairs = list(zip(outputs, references, strict=True))
    return {
        "exact_match": 100 * float(np.mean([exact_match(output, [reference]) for output, reference in pairs])),
        "f1": 100 * float(np.mean([f1(output, [reference]) for output, reference in pairs])),
    }


_METRICS: dict[str, tuple[tuple[str, ...], Callable[[Sequence[str], Sequence[str]], dict[str, float]]]] = {
    "bleu": (("bleu",), _bleu),
    "chrf": (("chrf",), _chrf),
    "rouge": (("rouge1", "rouge2", "rouge_l"), _rouge),
    "answers": (("exact_match", "f1"), _answers),
}
"""Metrics of a recipe's validation.metrics: names of the scores, and the function that computes them."""

TASK = TaskEntry("text-to-text", TextToTextObjective, TokenPredictions, TextToTextTask.from_recipe, generates=True)
