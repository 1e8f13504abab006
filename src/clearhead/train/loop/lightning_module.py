"""Lightning module: loss, optimizer and gradient clipping of one update after another."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from clearhead.equations import schedules
from clearhead.layers.embedding import TokenEmbedding
from clearhead.models.seq2seq import Seq2Seq
from clearhead.train.data.dataloader import MicroBatch
from clearhead.train.data.top_tokens import StoredTopTokens
from clearhead.train.distributed import fsdp
from clearhead.train.loop.optimizer import create_optimizer
from clearhead.train.recipe.errors import named
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.recipe.sections import OptimizerSection
from clearhead.train.regularizers import add_penalties, batch_loss
from clearhead.train.regularizers.base import LossInputs
from clearhead.train.regularizers.gradient_clipping import clip_gradients
from clearhead.train.tasks.base import Batch, Task
from clearhead.train.tasks.predictions import Prediction, TopTokens

_MAX_LISTED = 8
"""Examples that an error message lists."""


class DivergedError(ValueError):
    """A loss or a gradient became NaN or infinite."""


class TrainingModule(lightning.LightningModule):
    """A task's model in training.

    Args:
        task: the task.
        recipe: the recipe.
        total_steps: number of updates.
        teachers: trained models for distillation, or their stored tokens.
        sharded: whether several processes share the model's weights. Then a copy of the task's model is trained, and
            `full_model` copies its weights back.

    The loss of an update is the sum over all its batches and processes, divided by their number of tokens (or
    examples). Neither gradient accumulation nor the number of processes changes it.
    """

    def __init__(
        self,
        task: Task[Any],
        recipe: Recipe,
        total_steps: int,
        teachers: Sequence[nn.Module] | StoredTopTokens,
        sharded: bool = False,
    ) -> None:
        super().__init__()
        self.model = copy.deepcopy(task.model) if sharded else task.model
        self.task, self.recipe, self.total_steps = task, recipe, total_steps
        # in a tuple, because a module's attribute would be trained, moved and saved with it
        self._teachers = teachers if isinstance(teachers, StoredTopTokens) else tuple(teachers)
        self._sharded = sharded
        self._padding_rows = _zero_padding_rows(self.model)
        self.last_loss = self.last_learning_rate = self.gradient_norm = math.nan

    def configure_model(self) -> None:
        if self._sharded and self.device_mesh is not None:
            fsdp.shard_module(self, self.device_mesh["data_parallel"])

    def on_fit_start(self) -> None:
        if not isinstance(self._teachers, StoredTopTokens):
            for teacher in self._teachers:
                teacher.to(self.device)

    @contextlib.contextmanager
    def full_model(self) -> Iterator[nn.Module]:
        """Yield the task's model with the current weights; all processes have to call this together."""
        model: nn.Module = self.task.model
        if self._sharded:
            fsdp.gather_parameters(self.model, model.to(self.device))
        yield model
        if self._sharded:
            model.to("cpu")  # frees the accelerator's memory for training

    def configure_optimizers(self) -> Any:
        matmul_dtype = torch.bfloat16 if self.trainer.precision == "bf16-mixed" else None
        decay = self.recipe.regularize.weight_decay
        optimizer = create_optimizer(self.model, self.recipe.optimizer, decay, matmul_dtype)
        scheduler = LambdaLR(optimizer, _learning_rate_factor(self.recipe.optimizer, self.total_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: MicroBatch, batch_idx: int) -> None:
        # the seed depends only on the batch, so that a resumed run draws the same numbers
        torch.manual_seed(hash((self.recipe.seed, batch.index, self.global_rank)) % 2**63)

    def on_after_backward(self) -> None:
        for name, row in self._padding_rows:
            weight = self.model.get_parameter(name)
            if weight.grad is not None:
                keep_V1 = torch.ones(len(weight), 1, device=self.device)
                keep_V1[row] = 0.0
                weight.grad *= fsdp.shard_like(weight.grad, keep_V1)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        norm = clip_gradients(self.model, self.recipe.regularize.gradient_clipping)
        self.gradient_norm = float(fsdp.full_tensor(norm))
        self.last_learning_rate = optimizer.param_groups[-1]["lr"]
        if not math.isfinite(self.gradient_norm):
            raise DivergedError(self._diverged("gradient norm", self.gradient_norm))

    def training_step(self, micro_batch: MicroBatch, batch_idx: int) -> Tensor:
        self._current = micro_batch
        if micro_batch.batch is None and self._sharded:
            raise ValueError(
                f"batch {micro_batch.index} has fewer examples than there are processes. training.fsdp requires at "
                "least one per process; increase data.batch_tokens or data.batch_size"
            )
        if micro_batch.batch is None:  # fewer rows than processes; the others wait for this one's gradient
            loss = sum((parameter.sum() * 0.0 for parameter in self.model.parameters()), torch.zeros(()))
        else:
            loss = self._loss(micro_batch.batch) / micro_batch.loss_divisor
        # Lightning divides by the number of accumulated batches, DDP by the number of processes
        loss = loss * self.trainer.accumulate_grad_batches * self.trainer.world_size
        loss = add_penalties(loss, self.model, self.recipe.regularize)
        self.last_loss = float(loss.detach())
        if not math.isfinite(self.last_loss):
            raise DivergedError(self._diverged("loss", self.last_loss))
        return loss

    def _loss(self, batch: Batch) -> Tensor:
        regularize = self.recipe.regularize
        predict = partial(self.task.predict, self.model, batch, mask_padding=regularize.attention_masking)
        return batch_loss(LossInputs(predict(), predict, partial(self._predict_teachers, batch), regularize))

    def _predict_teachers(self, batch: Batch) -> list[Prediction] | TopTokens:
        if isinstance(self._teachers, StoredTopTokens):
            rows = self._current.rows[self.global_rank :: self.trainer.world_size]  # those of `Batch.shard`
            return self._teachers.of_rows(rows).to(self.device)
        # teachers were trained with masked padding, whatever the student does
        with named("regularize.distillation.teacher"):
            return [self.task.predict(teacher, batch, mask_padding=True) for teacher in self._teachers]

    def _diverged(self, name: str, value: float) -> str:
        current = self._current
        return (
            f"the {name} is {value} at step {current.step}, batch {current.index}, with examples "
            f"{_listed(current.rows)} of the training data. The last checkpoint is older than that. Try a lower "
            "optimizer.learning_rate, more warmup_steps or regularize.gradient_clipping"
        )


def warmup_steps(settings: OptimizerSection, total_steps: int) -> int:
    """Return the number of warmup steps: the recipe's, or a tenth of the run if the run would end before them.

    >>> warmup_steps(OptimizerSection(warmup_steps=500), 2000), warmup_steps(OptimizerSection(warmup_steps=500), 60)
    (500, 6)
    """
    return settings.warmup_steps if settings.warmup_steps < total_steps else total_steps // 10


def _learning_rate_factor(settings: OptimizerSection, total_steps: int) -> Callable[[int], float]:
    """Return the schedule: number of finished steps -> factor of the learning rate."""
    warmup = warmup_steps(settings, total_steps)
    match settings.schedule:
        case "inverse-square-root":
            return lambda done: schedules.inverse_square_root(done + 1, warmup)
        case "linear":
            return lambda done: schedules.linear(done + 1, warmup, total_steps + 1)
        case "cosine":
            return lambda done: schedules.cosine(done + 1, warmup, total_steps + 1)
        case "constant":
            return lambda done: schedules.constant(done + 1, warmup)


def _zero_padding_rows(model: nn.Module) -> list[tuple[str, int]]:
    """Return the embedding rows of the padding token that are zero and have to stay zero.

    In Marian the padding token also starts a target, and CTranslate2 starts with zeros there.
    """
    if not isinstance(model, Seq2Seq):
        return []
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, TokenEmbedding)}
    pad_id = model.config.pad_id
    weights = {name: weight for name, weight in model.named_parameters() if id(weight) in embeddings}
    return [
        (name, pad_id) for name, weight in weights.items() if pad_id < len(weight) and not bool(weight[pad_id].any())
    ]


def _listed(rows: tuple[int, ...]) -> str:
    shown = ", ".join(str(row) for row in rows[:_MAX_LISTED])
    return shown if len(rows) <= _MAX_LISTED else f"{shown} and {len(rows) - _MAX_LISTED} more"
