"""Sections of a recipe: keys, types and defaults."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from clearhead.layers.feedforward import Activation

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


def _check_64_bits(count: int) -> int:
    if count >= 2**63:  # PyTorch, tokenizers and len() each fail with a different error
        raise ValueError(f"it should be less than {2**63}")
    return count


Count = Annotated[int, Field(ge=1), AfterValidator(_check_64_bits)]
CountOrZero = Annotated[int, Field(ge=0), AfterValidator(_check_64_bits)]


class Section(BaseModel):
    """Base class of the sections: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_true(cls, value: object, info: Any) -> object:
        # pydantic converts true to 1, which would turn a regularizer on at full strength
        if value is True and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("expected a value, got true, which selects no value; docs/recipe.md lists the values")
        _check_characters(value)
        return value


def _check_characters(value: object) -> None:
    if isinstance(value, str) and min(value, default=" ") < " ":  # a path or a name in a message of one line
        raise ValueError("it contains a control character, such as a line break")


def _check_not_empty(files: Any) -> Any:
    inner = files.values() if isinstance(files, dict) else files if isinstance(files, list) else ()
    for path in (files, *inner):
        for name in path if isinstance(path, list) else (path,):
            _check_characters(name)
        if not path:
            raise ValueError(f"got {files!r:.80}; expected at least one file")
    return files


Files = Annotated[str | list[str] | dict[str, str | list[str]], AfterValidator(_check_not_empty)]
"""One or more files with columns, or for each field one or more files with one text per line."""


ModelName = Annotated[str, Field(min_length=1)]
"""Folder of a model, or its id on the Hugging Face Hub."""


def _check_names(names: str | list[str]) -> str | list[str]:
    listed = [names] if isinstance(names, str) else names
    for name in listed:
        _check_characters(name)
    if not listed or "" in listed:
        raise ValueError(f"got {names!r:.80}; expected a model or a list of models")
    return names


ModelNames = Annotated[str | list[str], AfterValidator(_check_names)]
"""One or more models."""


class DataSection(Section):
    """Training and validation data.

    Args:
        train: training examples. Files with columns (.tsv, .csv, .jsonl, .parquet, .arrow or SQuAD's .json), or a
            folder of Hugging Face datasets. A mapping gives each field of the task its own files, with one text per
            line. A pattern such as data/train-*.jsonl selects all matching files, sorted by name.
        validation: held-out examples in the same format. Required for validation.
        columns: column of each field, by name or by number from 0. Defaults to the field's name. A .csv or .tsv file
            without these names in its first line has the fields in order.
        encoding: encoding of text files.
        max_length: longest text in tokens, including special tokens; longer texts are truncated and counted. The
            model's own limit applies if it is lower.
        max_target_length: longest target in tokens. Examples with longer targets are skipped and counted, because a
            truncated target would teach the model to stop early.
        batch_tokens: maximum number of tokens in a batch, including padding, summed over all fields.
        batch_size: maximum number of examples in a batch.
        strict: raise an error for an example without tokens or longer than a batch, instead of skipping it.
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
    """Tokenizer to load or to train.

    Args:
        path: folder of a trained tokenizer. A checkpoint in model.init_from brings its own.
        vocab_size: without a path, size of the byte-pair encoding that is trained on the training texts.
        lowercase: whether the trained tokenizer lowercases its input.
    """

    path: ModelName | None = None
    vocab_size: Count = 10_000
    lowercase: bool = False


class ModelSection(Section):
    """Model to train: a new one of these sizes, or one initialized from a checkpoint.

    Args:
        init_from: checkpoint that initializes the whole model (a folder or a Hub id).
        init_encoder_from: checkpoint that initializes the encoder; the decoder is new (text-to-text only).
        init_decoder_from: encoder–decoder checkpoint that initializes the decoder; the encoder is new (text-to-text
            only).
        freeze: parts that are not trained: encoder, decoder, embeddings.
        architecture: model family in whose format the model is saved, such as marian, bart, t5, bert or roberta.
            Defaults to marian for an encoder–decoder and bert for an encoder.
        d_model: width of the token vectors. Defaults to the value of the model family, as the sizes below do.
        ffn_hidden: width inside the feed-forward network.
        num_heads: attention heads per layer.
        num_layers: layers of the encoder, and of the decoder unless decoder_num_layers is set.
        decoder_num_layers: layers of the decoder. Defaults to num_layers.
        max_len: longest input in tokens.
        activation: nonlinearity of the feed-forward network.
        initializer_range: standard deviation of the initial weights.
    """

    init_from: ModelName | None = None
    init_encoder_from: ModelName | None = None
    init_decoder_from: ModelName | None = None
    freeze: list[Literal["encoder", "decoder", "embeddings"]] = []
    architecture: str | None = None
    d_model: Count | None = None
    ffn_hidden: Count | None = None
    num_heads: Count | None = None
    num_layers: Count | None = None
    decoder_num_layers: Count | None = None
    max_len: Count | None = None
    activation: Activation | None = None
    initializer_range: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check_one_checkpoint(self) -> "ModelSection":
        halves = [name for name in ("init_encoder_from", "init_decoder_from") if getattr(self, name) is not None]
        if self.init_from is not None and halves:
            raise ValueError(f"init_from initializes the whole model; remove {' and '.join(halves)}")
        if len(halves) > 1:
            raise ValueError(
                "only one of init_encoder_from and init_decoder_from is allowed; to initialize both from one "
                "checkpoint, use init_from"
            )
        return self


class OptimizerSection(Section):
    """The optimizer and its learning rate schedule.

    Args:
        name: adamw (Loshchilov and Hutter 2019), or muon (Jordan et al. 2024), which updates the weight matrices of the
            layers and leaves all other weights to AdamW.
        learning_rate: peak learning rate, reached after the warmup. Defaults to 5e-05 with model.init_from, because
            fine-tuning needs a lower rate.
        matrix_learning_rate: peak learning rate of Muon. Defaults to learning_rate, which suits both.
        betas: decay rates of Adam's two moments. Defaults to [0.9, 0.999] with model.init_from.
        eps: term that keeps Adam from dividing by 0. Defaults to 1e-08 with model.init_from.
        schedule: inverse-square-root (the paper's), linear or cosine decay to 0, or constant. Defaults to linear with
            model.init_from.
        warmup_steps: number of steps of linear increase from 0. If the run has no more steps than this, a tenth of its
            steps.
    """

    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    matrix_learning_rate: Annotated[float, Field(gt=0)] | None = None
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-9
    schedule: Literal["inverse-square-root", "linear", "cosine", "constant"] = "inverse-square-root"
    warmup_steps: CountOrZero = 0

    @model_validator(mode="after")
    def _check_matrix_learning_rate(self) -> "OptimizerSection":
        if self.matrix_learning_rate is not None and self.name != "muon":
            raise ValueError(f"matrix_learning_rate is Muon's, but name is {self.name}; remove it, or set name: muon")
        return self

    def for_fine_tuning(self) -> "OptimizerSection":
        """Return the section with the defaults for fine-tuning in all keys that were not set."""
        # the usual values for BERT (Devlin et al. 2018, Appendix A.3, without its warmup)
        defaults = {"learning_rate": 5e-5, "betas": (0.9, 0.999), "eps": 1e-8, "schedule": "linear"}
        unset = {key: value for key, value in defaults.items() if key not in self.model_fields_set}
        return self.model_copy(update=unset)


class TrainingSection(Section):
    """Duration, device, precision and checkpoints.

    Args:
        steps: number of updates. Required, unless epochs is set.
        epochs: number of passes over the data. Required, unless steps is set.
        gradient_accumulation_steps: batches per update.
        precision: float32, bfloat16 (autocast; weights and updates stay in float32), or auto, which uses bfloat16 on
            processors with fast bfloat16 matmuls.
        device: auto, cpu, cuda or mps. `torchrun` starts several processes.
        fsdp: shard weights, gradients and optimizer state over the processes (FSDP2), for models too large for one
            device. Otherwise each process has a full copy (DDP).
        save_every: steps between checkpoints. Defaults to validation.every.
        keep_last: number of most recent checkpoints whose weights are kept.
        final_weights: weights of the saved model, namely those of the best validation, the last ones, or the average of
            those kept. Defaults to best with validation data, else to last.
        log_every: steps between rows in metrics.csv, and between log lines if standard error is not a terminal.
    """

    steps: Count | None = None
    epochs: Count | None = None
    gradient_accumulation_steps: Count = 1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    fsdp: bool = False
    save_every: Count | None = None
    keep_last: Count = 1
    final_weights: Literal["best", "last", "average"] | None = None
    log_every: Count = 50

    @field_validator("device")
    @classmethod
    def _check_no_index(cls, device: str) -> str:
        if ":" in device:
            raise ValueError("expected auto, cpu, cuda or mps, without an index; CUDA_VISIBLE_DEVICES selects a GPU")
        return device

    @model_validator(mode="after")
    def _check_one_duration(self) -> "TrainingSection":
        if self.steps is None and self.epochs is None:
            raise ValueError("exactly one of steps and epochs is required; neither is set")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                "steps and epochs are both set; exactly one is required. Remove one, or set it to null, such as "
                "training.steps=null on the command line"
            )
        return self


class ValidationSection(Section):
    """Evaluation on held-out data during training.

    Args:
        every: steps between validations. Each logs the scores and the predictions for three held-out examples.
        metrics: metrics in addition to the loss, for text-to-text: bleu, chrf, rouge, answers (exact match and F1). The
            other tasks have fixed metrics. [] computes only the loss.
        max_examples: evaluate only this many held-out examples, from the first on. Defaults to all.
        beam_size: beam size for the generated outputs.
        max_new_tokens: maximum length of the generated outputs in tokens.
        monitor: metric that selects the best checkpoint and controls early stopping.
    """

    every: Count = 500
    metrics: list[Literal["bleu", "chrf", "rouge", "answers"]] = []
    max_examples: Count | None = None
    beam_size: Count = 1
    max_new_tokens: Count = 200
    monitor: str = "loss"


class RecipeBase(Section):
    """Recipe as the conflict checks of regularizers see it; `Recipe` adds the types of the last two sections."""

    task: str
    output: Annotated[str, Field(min_length=1)]
    data: DataSection
    tokenizer: TokenizerSection = TokenizerSection()
    model: ModelSection = ModelSection()
    objective: Any = None
    regularize: Any = None
    optimizer: OptimizerSection = OptimizerSection()
    training: TrainingSection
    validation: ValidationSection = ValidationSection()
    seed: CountOrZero = 1
