"""The course of a run: what happens between updates. Logs, validation, early stopping, checkpoints, the end."""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import lightning
import torch

from clearhead._version import __version__
from clearhead.finite import NonFiniteError
from clearhead.train.checkpointing import FORMAT, CheckpointManager, is_finite
from clearhead.train.data.dataloader import MicroBatch
from clearhead.train.lightning_module import DivergedError, TrainingModule
from clearhead.train.metrics_logger import MetricsLogger
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.tasks.base import better

log = logging.getLogger(__name__)

Validate = Callable[[], dict[str, float]]
Advance = Callable[[int, int, str], None]
"""Told of each step: which, of how many, and what there is to say."""


class TrainingCallback(lightning.Callback):
    """What happens after each update.

    Args:
        recipe: the run's.
        shelf: its checkpoints.
        validate: measures the model as it is; None where there is no held-out data.
        identity: what a resumed run must have in common with this one.
        advance: told of each step, for a progress bar.
    """

    def __init__(
        self,
        recipe: Recipe,
        shelf: CheckpointManager,
        validate: Validate | None,
        identity: dict[str, Any],
        advance: Advance,
    ) -> None:
        self._recipe, self._shelf, self.validate, self._identity = recipe, shelf, validate, identity
        self._advance = advance
        self.journal: MetricsLogger | None = None
        self.asked_to_stop = False
        self.listen: Callable[[], None] = lambda: None
        self.stopped_early = False
        self.step = 0
        self.best = math.nan
        self.scores: dict[str, float] = {}
        self.scored = 0
        self._to_beat, self._worse = math.nan, 0
        self._losses: list[float] = []
        self._tokens, self._since = 0, time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "best": self.best,
            "to_beat": self._to_beat,
            "worse": self._worse,
            "scores": self.scores,
            "scored": self.scored,
            "stopped_early": self.stopped_early,
            "kept": self._shelf.last,
            "best_step": self._shelf.best,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self.best = state_dict["step"], state_dict["best"]
        self._to_beat, self._worse = state_dict["to_beat"], state_dict["worse"]
        self.scores, self.scored = state_dict["scores"], state_dict["scored"]
        self.stopped_early = state_dict["stopped_early"]
        self._shelf.last, self._shelf.best = state_dict["kept"], state_dict["best_step"]

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["clearhead"] = {"format": FORMAT, "version": __version__, **self._identity}

    def done(self, steps: int) -> bool:
        """Whether there is nothing left to do of so many steps."""
        return self.step == steps or self.stopped_early

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.listen()  # again: Lightning has put its own answer to SIGTERM before, which leaves in the middle of a step
        if trainer.is_global_zero:
            self._shelf.tidy()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: MicroBatch,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        self._losses.append(pl_module.last_loss)
        self._tokens += batch.tokens
        if (batch.number + 1) % trainer.accumulate_grad_batches:
            return
        self.step = batch.step
        last = self.step == pl_module.steps
        loss = self._loss_of_step(trainer)
        if last or self.step % self._recipe.training.log_every == 0 or self.step == 1:
            self._note(trainer, pl_module, batch.epoch, loss)
        stop = self._stop_asked(trainer)
        every = self._recipe.validation.every
        best = False
        validated = self.validate is not None and (last or self.step % every == 0)
        if validated:
            best = self._judge(trainer, pl_module)
        save_every = self._recipe.training.save_every or every
        due = last or validated or self.step % save_every == 0
        if due or stop:
            self._save(trainer, pl_module, best, passing=not due)
        trainer.should_stop = trainer.should_stop or stop or self.stopped_early
        self._advance(self.step, pl_module.steps, f"loss {loss:.4f}")

    def _loss_of_step(self, trainer: lightning.Trainer) -> float:
        """The loss of the update: over all its batches and processes."""
        mean = torch.tensor(math.fsum(self._losses) / len(self._losses), dtype=torch.float64)
        self._losses.clear()
        if trainer.world_size > 1:
            mean = trainer.strategy.reduce(mean.to(trainer.strategy.root_device), reduce_op="mean")
        return float(mean)

    def _note(self, trainer: lightning.Trainer, learner: TrainingModule, epoch: int, loss: float) -> None:
        now = time.perf_counter()
        speed = self._tokens / max(now - self._since, 1e-9)
        self._tokens, self._since = 0, now
        if self.journal is not None:
            self.journal.add(
                self.step,
                {
                    "epoch": epoch,
                    "loss": loss,
                    "learning_rate": learner.last_rate,
                    "gradient_norm": learner.gradient_norm,
                    "tokens_per_second": round(speed, 1),
                },
            )

    def _stop_asked(self, trainer: lightning.Trainer) -> bool:
        """Whether any process was asked to stop: then all do, after the same step."""
        if trainer.world_size == 1:
            return self.asked_to_stop
        return bool(trainer.strategy.reduce_boolean_decision(self.asked_to_stop, all=False))

    def _judge(self, trainer: lightning.Trainer, learner: TrainingModule) -> bool:
        """Validates, and says whether the model has never been better."""
        assert self.validate is not None
        start = time.perf_counter()
        with learner.whole(), trainer.precision_plugin.val_step_context():
            try:
                scores = self.validate()
            except NonFiniteError as error:
                raise DivergedError(f"validation failed at step {self.step}: {error}") from None
        self.scores, self.scored = trainer.strategy.broadcast(scores), self.step
        self._since += time.perf_counter() - start
        told = self._recipe.regularize.early_stopping
        select = self._recipe.validation.select
        score = self.scores[select]
        best = better(select, score, self.best)
        if best:
            self.best = score
        if better(select, score, self._to_beat, told.min_delta if told else 0.0):
            self._to_beat, self._worse = score, 0
        else:
            self._worse += 1
        if told is not None and self._worse >= told.patience:
            self.stopped_early = True
        if self.journal is not None:
            self.journal.add(self.step, {_column(name): value for name, value in self.scores.items()})
            self.journal.flush()
        listed = "  ".join(f"{_column(name).replace('_', ' ')} {value:.4f}" for name, value in self.scores.items())
        log.info("step %d  %s%s", self.step, listed, "  (best)" if best else "")
        if self.stopped_early:
            log.info("stopped: %s has not got better in %d validations", select, self._worse)
        return best

    def _save(self, trainer: lightning.Trainer, learner: TrainingModule, best: bool, passing: bool) -> None:
        with learner.whole() as model:
            if not is_finite(model.parameters()):
                raise DivergedError(
                    f"weights are no numbers any more at step {self.step}; the last checkpoint is from before"
                )
            if trainer.is_global_zero:
                self._shelf.write(model, self.step, best=best, passing=passing)
            else:
                self._shelf.note(self.step, best=best, passing=passing)
        trainer.save_checkpoint(self._shelf.state)
        if trainer.is_global_zero:
            self._shelf.tidy()


def _column(name: str) -> str:
    return "validation_loss" if name == "loss" else name
