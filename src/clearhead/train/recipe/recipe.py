"""The recipe: everything that a training run is told, checked before anything is computed."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from clearhead.layers.feedforward import Activation
from clearhead.models.config import Pooling
from clearhead.train.recipe.conflicts import conflicts
from clearhead.train.recipe.errors import format_error

TaskName = Literal["text-to-text", "masked-language-model", "classification", "span-answers", "sentence-embeddings"]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


def _below_64_bits(count: int) -> int:
    if count >= 2**63:  # PyTorch, tokenizers and len() each fail in their own words
        raise ValueError(f"it should be less than {2**63}")
    return count


Count = Annotated[int, Field(ge=1), AfterValidator(_below_64_bits)]


class Section(BaseModel):
    """A part of a recipe: no other keys than its own, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object, info: Any) -> object:
        # pydantic would take true for 1, and a regulariser would be on with a strength that nobody has asked for
        if value is True and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("true does not say what; a value is wanted")
        return value


Files = str | list[str] | dict[str, str | list[str]]
"""A file or several with columns, or for each field a file or several with a text a line."""


class Data(Section):
    """What is learned from.

    Args:
        train: the examples: one file or several with columns (.tsv, .csv, .jsonl, .parquet, or SQuAD's .json), or for
            each field of the task files with a text a line.
        validation: held-out examples, alike; without them nothing is validated.
        columns: for each field its column, by name or by number from 0; as the fields are named where it says nothing.
        encoding: of text files.
        max_length: tokens after which a text is cut, special tokens included; what the model takes where less. What is
            cut is counted.
        max_target_length: a target with more tokens is left out, and counted: to cut it would teach to stop early.
        batch_tokens: tokens in a batch, padding included, all fields together.
        batch_size: most examples in a batch.
        strict: an example without tokens, or longer than the batch, is an error instead of being left out and counted.
    """

    train: Files
    validation: Files | None = None
    columns: dict[str, str | int] | None = None
    encoding: str = "utf-8"
    max_length: Count = 512
    max_target_length: Count = 512
    batch_tokens: Count = 8192
    batch_size: Count | None = None
    strict: bool = False


class TokenizerSection(Section):
    """Where token ids come from.

    Args:
        path: a folder with a tokenizer; a model that is started from brings its own.
        vocab_size: without one, byte-pair encoding with so many tokens is learned from the training texts.
        lowercase: whether that one makes all letters small.
    """

    path: str | None = None
    vocab_size: Count = 10_000
    lowercase: bool = False


class Model(Section):
    """What is trained: a new model of these sizes, or one that is started from.

    Args:
        start: a checkpoint, all of which is taken over (a folder or a Hub id).
        encoder: a checkpoint whose encoder is put under a fresh decoder (text-to-text).
        decoder: an encoder–decoder checkpoint whose decoder is put over a fresh encoder (text-to-text).
        freeze: parts that are not trained: encoder, decoder, embeddings.
        layout: the family whose folders the model is written in, such as marian, bart, t5 or bert, roberta; by default
            marian for an encoder–decoder and bert for an encoder.
        d_model, ffn_hidden, num_heads, num_layers, decoder_num_layers, max_len, activation, initializer_range: as in
            `Seq2SeqConfig`; what is not said is the family's own.
    """

    start: str | None = None
    encoder: str | None = None
    decoder: str | None = None
    freeze: list[Literal["encoder", "decoder", "embeddings"]] = []
    layout: str | None = None
    d_model: Count | None = None
    ffn_hidden: Count | None = None
    num_heads: Count | None = None
    num_layers: Count | None = None
    decoder_num_layers: Count | None = None
    max_len: Count | None = None
    activation: Activation | None = None
    initializer_range: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_start(self) -> "Model":
        said = [name for name in ("start", "encoder", "decoder") if getattr(self, name) is not None]
        if "start" in said and len(said) > 1:
            raise ValueError(f"start takes over a whole model; {' and '.join(said[1:])} cannot be said beside it")
        if self.encoder is not None and self.decoder is not None:
            raise ValueError("either encoder or decoder comes from a checkpoint; the other one is fresh")
        return self


class Dropout(Section):
    """Dropout by place (Srivastava et al. 2014; Section 5.4 of "Attention Is All You Need").

    Args:
        attention: of the attention weights.
        feed_forward: inside the feed-forward networks, after the activation.
        residual: of a sublayer's output, before it is added; also before the last map of a classification's head.
        embedding: of the summed embeddings.
    """

    attention: Probability = 0.0
    feed_forward: Probability = 0.0
    residual: Probability = 0.0
    embedding: Probability = 0.0


class EarlyStopping(Section):
    """Stop when validation gets no better (Prechelt 1998).

    Args:
        patience: validations in a row without a better score.
        min_delta: by how much a score must be better to count.
    """

    patience: Count = 5
    min_delta: Annotated[float, Field(ge=0)] = 0.0


class Augmentation(Section):
    """Changes of the input's tokens, drawn anew in each epoch; targets stay as they are.

    Span answers take those that leave each token in its place; a masked language model has objective.mask_rate instead.

    Args:
        token_masking: share of tokens that become the mask (or the unknown) token.
        token_swapping: probability with which two neighbours change places.
        span_masking: share of tokens that are masked in spans of 3 on average.
        shuffling: places that a token may move at most.
        noise: share of tokens that become random ones.
        token_deletion: share of tokens that are left out.
    """

    token_masking: Probability = 0.0
    token_swapping: Probability = 0.0
    span_masking: Probability = 0.0
    shuffling: Annotated[int, Field(ge=0)] = 0
    noise: Probability = 0.0
    token_deletion: Probability = 0.0


class Distillation(Section):
    """A teacher's pull (Hinton et al. 2015; Kim and Rush 2016).

    Args:
        teacher: a trained model of the same task: a folder or a Hub id.
        temperature: by which both sides' logits are divided.
        weight: share of the loss that follows the teacher's probabilities; the rest follows the data.
        hidden_weight: factor of the mean squared distance between last hidden states, for a teacher of the same width.
        sequence: learn the teacher's own outputs instead of the data's targets (text-to-text, by `clearhead distill`).
        beam_size: of the search for them.
    """

    teacher: str
    temperature: Annotated[float, Field(gt=0)] = 2.0
    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    hidden_weight: Annotated[float, Field(ge=0)] = 0.0
    sequence: bool = False
    beam_size: Count = 5


def _one_rate(value: object) -> object:
    """A single number is the dropout of feed-forward, residual and embedding, as drop_prob is."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"feed_forward": value, "residual": value, "embedding": value}
    return {} if value is False else value


def _off(value: object) -> object:
    return None if value is False else value


class Regularize(Section):
    """The regularisers, each a switch; false is off.

    Args:
        dropout: rates by place, or one rate for feed-forward, residual and embedding.
        attention_masking: whether padding is masked in training. Off: tokens attend to padding; causality stays.
        weight_decay: decoupled decay (AdamW), of matrices only: no biases, no norms.
        l2_penalty: λ of the penalty λ/2 Σ w² in the loss, over the same matrices; unlike decay its gradient passes
            through Adam's moments.
        layer_norm: off makes every layer norm the identity; such a model often diverges, and no other library opens it.
        label_smoothing: ε of the target's distribution (1 − ε) onehot + ε / V.
        early_stopping: patience with validation.
        augmentation: changes of the input's tokens.
        gradient_clipping: greatest norm of all gradients together.
        distillation: a teacher.
        layer_drop: probability with which a layer is left out (Fan et al. 2019); with residual dropout, what
            regularises the residual path.
        r_drop: weight of the divergence between two passes with different dropout (Liang et al. 2021). Half of their α:
            the two passes' losses are averaged here, there they are summed.
    """

    dropout: Annotated[Dropout, BeforeValidator(_one_rate)] = Dropout(feed_forward=0.1, residual=0.1, embedding=0.1)
    attention_masking: bool = True
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    l2_penalty: Annotated[float, Field(ge=0)] = 0.0
    layer_norm: bool = True
    label_smoothing: Probability = 0.0
    early_stopping: Annotated[EarlyStopping | None, BeforeValidator(_off)] = None
    augmentation: Annotated[Augmentation | None, BeforeValidator(_off)] = None
    gradient_clipping: Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(_off)] = 1.0
    distillation: Annotated[Distillation | None, BeforeValidator(_off)] = None
    layer_drop: Probability = 0.0
    r_drop: Annotated[float, Field(ge=0)] = 0.0


class Optimizer(Section):
    """AdamW (Loshchilov and Hutter 2019) and the course of its learning rate.

    Args:
        learning_rate: the greatest one, reached after the warm-up.
        betas: by how much Adam's two moments hold on to what they were.
        eps: what keeps Adam from dividing by 0.
        schedule: inverse-square-root (the paper's), linear or cosine to 0, or constant.
        warmup_steps: steps in which the rate rises from 0.
    """

    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-9
    schedule: Literal["inverse-square-root", "linear", "cosine", "constant"] = "inverse-square-root"
    warmup_steps: Annotated[int, Field(ge=0)] = 0


class Training(Section):
    """How long, on what, and what is kept.

    Args:
        steps: updates of the weights; either these are said or
        epochs: passes over the data.
        accumulate: batches that make one update.
        precision: float32, bfloat16 (autocast: weights and their updates stay in float32), or auto: bfloat16 where the
            processor multiplies it fast.
        device: auto, cpu, cuda, mps. Several processes are started by `torchrun`.
        shard: weights, gradients and the optimiser's state are divided among the processes (FSDP2) where each has its
            own copy of them otherwise (DDP); for models that do not fit.
        save_every: steps between checkpoints; as validation.every where nothing is said.
        keep_last: weights of so many last checkpoints that are kept.
        final: which weights the folder gets in the end: the best validated, the last, or the average of those kept; the
            best where there is validation.
        log_every: steps between lines in metrics.csv.
    """

    steps: Count | None = None
    epochs: Count | None = None
    accumulate: Count = 1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    shard: bool = False
    save_every: Count | None = None
    keep_last: Count = 1
    final: Literal["best", "last", "average"] | None = None
    log_every: Count = 50

    @model_validator(mode="after")
    def _one_end(self) -> "Training":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("either steps or epochs says how long to train")
        return self


class Validation(Section):
    """How good the model is on held-out data.

    Args:
        every: steps between validations.
        scores: what is measured beside the loss: bleu, chrf, rouge, answers (exact match and F1) for text-to-text; the
            other tasks have scores of their own. [] for the loss alone.
        examples: so many of the held-out examples, from the first on, are measured; all where nothing is said.
        beam_size: of the search for outputs to score.
        max_new_tokens: longest of these outputs, in tokens.
        select: the measure by which the best checkpoint is chosen and early stopping judges; the loss by default.
    """

    every: Count = 500
    scores: list[Literal["bleu", "chrf", "rouge", "answers"]] = []
    examples: Count | None = None
    beam_size: Count = 1
    max_new_tokens: Count = 200
    select: str = "loss"


class TextToTextObjective(Section):
    """Peculiar to text-to-text.

    Args:
        prefix: what is put before each source, such as "summarize: ".
        source_lang, target_lang: for models that are told their languages.
        length_penalty, beam_size: written into the folder, for generation with the trained model; where nothing is
            said those of the checkpoint in model.start, else 1 and 5.
    """

    prefix: str = ""
    source_lang: str | None = None
    target_lang: str | None = None
    length_penalty: float | None = None
    beam_size: Count | None = None


class MaskedObjective(Section):
    """Peculiar to the masked language model (Devlin et al. 2018, Section 3.1).

    Args:
        mask_rate: share of tokens that are to be guessed.
    """

    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15


class ClassificationObjective(Section):
    """Peculiar to classification.

    Args:
        labels: names of the classes; those of the training data, sorted, where nothing is said.
    """

    labels: list[str] | None = None


class SpanObjective(Section):
    """Peculiar to span answers (Devlin et al. 2018, Sections 4.2 and 4.3).

    Args:
        stride: tokens of the context that neighbouring windows share.
    """

    stride: Annotated[int, Field(ge=0)] = 128


class EmbeddingObjective(Section):
    """Peculiar to sentence embeddings (Reimers and Gurevych 2019; Henderson et al. 2017).

    Args:
        loss: contrastive: of each pair the second is told from all others in the batch; regression: the cosine of a
            pair is its score.
        pooling: mean, cls or max.
        scale: factor of the cosines in the contrastive loss.
        score_range: what scores of the data lie between; they are mapped onto 0 … 1.
    """

    loss: Literal["contrastive", "regression"] = "contrastive"
    pooling: Pooling = "mean"
    scale: Annotated[float, Field(gt=0)] = 20.0
    score_range: tuple[float, float] = (0.0, 5.0)

    @model_validator(mode="after")
    def _wide(self) -> "EmbeddingObjective":
        low, high = self.score_range
        if not low < high:
            raise ValueError(f"score_range goes from a lower number to a higher one; got {low} to {high}")
        return self


OBJECTIVES: dict[str, type[Section]] = {
    "text-to-text": TextToTextObjective,
    "masked-language-model": MaskedObjective,
    "classification": ClassificationObjective,
    "span-answers": SpanObjective,
    "sentence-embeddings": EmbeddingObjective,
}


class Recipe(Section):
    """A training run.

    Args:
        task: what is learned.
        output: the folder of the run, in which the trained model will lie.
        data, tokenizer, model, regularize, optimizer, training, validation: sections, each with keys of its own.
        objective: what is peculiar to the task.
        seed: of the initial weights, the order of the data and all draws.

    >>> from clearhead.train.recipe.recipe import Recipe
    >>> recipe = Recipe(task="classification", output="run", data={"train": "a.tsv"}, training={"epochs": 1})
    >>> recipe.regularize.dropout.residual
    0.1
    """

    task: TaskName
    output: Annotated[str, Field(min_length=1)]
    data: Data
    tokenizer: TokenizerSection = TokenizerSection()
    model: Model = Model()
    objective: Any = None
    regularize: Regularize = Regularize()
    optimizer: Optimizer = Optimizer()
    training: Training
    validation: Validation = Validation()
    seed: Annotated[int, Field(ge=0)] = 1

    @model_validator(mode="before")
    @classmethod
    def _of_task(cls, data: Any) -> Any:
        kind = OBJECTIVES.get(str(data.get("task"))) if isinstance(data, dict) else None
        if kind is None:
            return data
        given = data.get("objective") or {}
        if isinstance(given, Mapping):
            # checked here, where the task is known, so that the message names the task's own keys
            try:
                given = kind(**given)
            except ValidationError as error:
                raise ValueError(format_error(error, kind, ("objective",))) from None
        if not isinstance(given, kind):
            raise ValueError(f"objective: {given!r} is given; keys with values are wanted")
        return {**data, "objective": given}

    @model_validator(mode="after")
    def _fits(self) -> "Recipe":
        for key, why in conflicts(self):
            raise ValueError(f"{key}: {why}")
        return self
