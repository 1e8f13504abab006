"""One update after another: the task's loss with its regularisers, as a Lightning module."""

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from clearhead.equations import losses, schedules
from clearhead.layers.embedding import TokenEmbedding
from clearhead.models.seq2seq import Seq2Seq
from clearhead.train import regularizers
from clearhead.train.data.dataloader import MicroBatch
from clearhead.train.distributed import fsdp
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.tasks.base import Batch, Prediction, Task


class DivergedError(ValueError):
    """A loss or a gradient is no number any more."""


class TrainingModule(lightning.LightningModule):
    """A task's model while it learns.

    Args:
        task: what is learned.
        recipe: how.
        steps: updates in all.
        teacher: a trained model to learn from, if the recipe has one.
        sharded: whether several processes divide the model. Then a copy of the task's model learns, and `whole` fills
            the task's own with what it has learned.

    The loss of an update is the sum over all its batches and processes, divided by the tokens (or examples) of all of
    them: neither accumulation nor the number of processes changes what is learned.
    """

    def __init__(
        self, task: Task[Any], recipe: Recipe, steps: int, teacher: nn.Module | None, sharded: bool = False
    ) -> None:
        super().__init__()
        self.model = copy.deepcopy(task.model) if sharded else task.model
        self.task, self.recipe, self.steps = task, recipe, steps
        # in a tuple: a module's attribute would be trained, moved and saved with it
        self._teacher = (teacher,)
        self._sharded = sharded
        self._padding = _padding_rows(self.model)
        self.last_loss = self.last_rate = self.gradient_norm = math.nan

    def configure_model(self) -> None:
        if self._sharded and self.device_mesh is not None:
            fsdp.divide(self, self.device_mesh["data_parallel"])

    @contextlib.contextmanager
    def whole(self) -> Iterator[nn.Module]:
        """The task's model, with the weights that were learned so far; all processes come here together."""
        model: nn.Module = self.task.model
        if self._sharded:
            fsdp.gather(self.model, model.to(self.device))
        yield model
        if self._sharded:
            model.to("cpu")  # the room on an accelerator is for what learns

    def configure_optimizers(self) -> Any:
        told = self.recipe.optimizer
        optimizer = regularizers.optimizer(self.model, told, self.recipe.regularize.weight_decay)

        def factor(done: int) -> float:
            match told.schedule:
                case "inverse-square-root":
                    return schedules.inverse_square_root(done + 1, told.warmup_steps)
                case "linear":
                    return schedules.linear(done + 1, told.warmup_steps, self.steps + 1)
                case "cosine":
                    return schedules.cosine(done + 1, told.warmup_steps, self.steps + 1)
                case "constant":
                    return schedules.constant(done + 1, told.warmup_steps)
            raise AssertionError(told.schedule)

        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}}

    def on_train_batch_start(self, batch: MicroBatch, batch_idx: int) -> None:
        # the draws of a batch follow from its number: a resumed run makes the same ones
        torch.manual_seed(hash((self.recipe.seed, batch.number, self.global_rank)) % 2**63)

    def on_after_backward(self) -> None:
        for name, row in self._padding:
            weight = self.model.get_parameter(name)
            if weight.grad is not None:
                keep_V1 = torch.ones(len(weight), 1, device=self.device)
                keep_V1[row] = 0.0
                weight.grad *= fsdp.like(weight.grad, keep_V1)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips the gradient's norm, and knows it.

        Equation: g ← g · min(1, c / ‖g‖)
        Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", Algorithm 1
        """
        greatest = self.recipe.regularize.gradient_clipping
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = fsdp.full(nn.utils.clip_grad_norm_(parameters, math.inf if greatest is None else greatest))
        self.gradient_norm = float(norm)
        self.last_rate = optimizer.param_groups[0]["lr"]
        if not math.isfinite(self.gradient_norm):
            raise DivergedError(self._lost("gradient's norm", self.gradient_norm))

    def training_step(self, part: MicroBatch, batch_idx: int) -> Tensor:
        self._at = part
        if part.batch is None and self._sharded:
            raise ValueError(
                f"batch {part.number} has fewer examples than there are processes, and with training.shard each has to "
                "have one; a larger data.batch_tokens or batch_size gives it"
            )
        if part.batch is None:  # fewer rows than processes; the others wait for this one's gradient
            loss = sum((parameter.sum() * 0.0 for parameter in self.model.parameters()), torch.zeros(()))
        else:
            loss = self._loss(part.batch) / part.total
        # Lightning divides by the number of accumulated batches, DDP by the number of processes
        loss = loss * self.trainer.accumulate_grad_batches * self.trainer.world_size
        penalty = self.recipe.regularize.l2_penalty
        if penalty:
            loss = loss + losses.l2_penalty(regularizers.decayed_parameters(self.model), penalty)
        self.last_loss = float(loss.detach())
        if not math.isfinite(self.last_loss):
            raise DivergedError(self._lost("loss", self.last_loss))
        return loss

    def _loss(self, batch: Batch) -> Tensor:
        told = self.recipe.regularize
        guess = self._guess(self.model, batch)
        if told.r_drop:
            loss = regularizers.r_drop_loss(guess, self._guess(self.model, batch), told.label_smoothing, told.r_drop)
        else:
            loss = regularizers.task_loss(guess, told.label_smoothing)
        (teacher,) = self._teacher
        if told.distillation is not None and teacher is not None:
            with torch.no_grad():
                # a teacher guesses as it was taught to: its padding stays masked whatever the student's does
                wanted = self.task.guess(teacher, batch, masked=True)
            share = told.distillation.weight
            loss = (1 - share) * loss + share * regularizers.distillation_loss(
                guess, wanted, told.distillation.temperature
            )
            if told.distillation.hidden_weight:
                loss = loss + told.distillation.hidden_weight * regularizers.hidden_state_loss(guess, wanted)
        return loss

    def _lost(self, what: str, value: float) -> str:
        part = self._at
        return (
            f"the {what} is {value} at step {part.step}, batch {part.number}, which holds the examples "
            f"{_listed(part.places)} of the training data; the last checkpoint is from before. A lower "
            "optimizer.learning_rate, more warmup_steps or regularize.gradient_clipping may help"
        )

    def _guess(self, model: nn.Module, batch: Batch) -> Prediction:
        return self.task.guess(model, batch, masked=self.recipe.regularize.attention_masking)


def _padding_rows(model: nn.Module) -> list[tuple[str, int]]:
    """The padding token's rows that are zeros, and shall stay so: where it also begins a target (Marian), CTranslate2
    begins with zeros."""
    if not isinstance(model, Seq2Seq):
        return []
    tokens = {id(part.weight) for part in model.modules() if isinstance(part, TokenEmbedding)}
    pad = model.config.pad_id
    held = {name: weight for name, weight in model.named_parameters() if id(weight) in tokens}
    return [(name, pad) for name, weight in held.items() if pad < len(weight) and not bool(weight[pad].any())]


def _listed(places: tuple[int, ...]) -> str:
    shown = ", ".join(str(place) for place in places[:8])
    return shown if len(places) <= 8 else f"{shown} and {len(places) - 8} more"
