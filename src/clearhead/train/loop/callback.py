"""Lightning callback: logging, validation, early stopping and checkpointing."""

import logging
import math
from collections.abc import Callable
from typing import Any

import lightning
import torch

from clearhead._version import __version__
from clearhead.finite import NonFiniteError
from clearhead.train.data.dataloader import MicroBatch
from clearhead.train.loop.checkpointing import FORMAT, CheckpointManager, is_finite
from clearhead.train.loop.lightning_module import DivergedError, TrainingModule
from clearhead.train.loop.metrics_logger import MetricsLogger, Row, format_scores
from clearhead.train.loop.speed import SpeedMeter, format_duration
from clearhead.train.recipe.recipe import Recipe
from clearhead.train.regularizers.early_stopping import ImprovementTracker, is_better

log = logging.getLogger(__name__)

STEP_LOGGER = "clearhead.train.steps"
"""Logger of the lines about single steps, which a progress bar replaces."""

step_log = logging.getLogger(STEP_LOGGER)

Validate = Callable[[], dict[str, float]]

Samples = Callable[[], list[str]]

OnStep = Callable[[int, int, str], None]
"""Called after each step with its number, the number of steps and a message."""


class TrainingCallback(lightning.Callback):
    """Actions after each update.

    Args:
        recipe: the recipe.
        checkpoints: manager of the run's checkpoints.
        validate: computes the metrics of the current model; None without held-out data.
        samples: returns lines that show predictions of the current model.
        identity: properties that a resumed run must share with this one.
        on_step: called after each step, for a progress bar.
    """

    def __init__(
        self,
        recipe: Recipe,
        checkpoints: CheckpointManager,
        validate: Validate | None,
        samples: Samples,
        identity: dict[str, Any],
        on_step: OnStep,
    ) -> None:
        super().__init__()
        self._recipe, self._checkpoints, self.validate, self._identity = recipe, checkpoints, validate, identity
        self._samples, self._on_step = samples, on_step
        self.metrics_logger: MetricsLogger | None = None
        self.rows: list[Row] | None = []
        self.stop_requested = False
        self.install_signal_handlers: Callable[[], None] = lambda: None
        self.stopped_early = False
        self.step = 0
        self.best = math.nan
        self.scores: dict[str, float] = {}
        self.validated_step = 0
        self._improvement = ImprovementTracker(recipe.validation.monitor, recipe.regularize.early_stopping)
        self._losses: list[float] = []
        self._num_tokens, self._speed, self._is_estimated = 0, SpeedMeter(), False

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "best": self.best,
            "to_beat": self._improvement.best,
            "worse": self._improvement.num_bad,
            "scores": self.scores,
            "scored": self.validated_step,
            "stopped_early": self.stopped_early,
            "kept": self._checkpoints.last,
            "best_step": self._checkpoints.best,
            "hashes": self._checkpoints.kept_hashes(),
            "rows": [] if self.metrics_logger is None else self.metrics_logger.rows_without_speed(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self.best = state_dict["step"], state_dict["best"]
        self._improvement.best, self._improvement.num_bad = state_dict["to_beat"], state_dict["worse"]
        self.scores, self.validated_step = state_dict["scores"], state_dict["scored"]
        self.stopped_early = state_dict["stopped_early"]
        self._checkpoints.last, self._checkpoints.best = state_dict["kept"], state_dict["best_step"]
        # a state of an earlier version has no hashes and rows
        self._checkpoints.hashes = state_dict.get("hashes", {})
        self.rows = state_dict.get("rows")

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["clearhead"] = {"format": FORMAT, "version": __version__, **self._identity}

    def is_finished(self, total_steps: int) -> bool:
        """Return whether the run has made all its steps or stopped early."""
        return self.step == total_steps or self.stopped_early

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        # again, because Lightning has replaced the SIGTERM handler with one that exits in the middle of a step
        self.install_signal_handlers()
        if trainer.is_global_zero:
            self._checkpoints.prune()

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
        self._num_tokens += batch.num_tokens
        if (batch.index + 1) % trainer.accumulate_grad_batches:
            return
        self.step = batch.step
        self._speed.finish_step(self.step, self._num_tokens)
        self._num_tokens = 0
        is_last = self.step == pl_module.total_steps
        loss = self._update_loss(trainer)
        if is_last or self.step % self._recipe.training.log_every == 0 or self.step == 1:
            self._log_step(pl_module, batch.epoch, loss)
        self._log_estimate(pl_module.total_steps)
        stop = self._any_stop_requested(trainer)
        every = self._recipe.validation.every
        validated = self.validate is not None and (is_last or self.step % every == 0)
        best = self._validate(trainer, pl_module) if validated else False
        save_due = is_last or validated or self.step % (self._recipe.training.save_every or every) == 0
        if save_due or stop:
            self._save(trainer, pl_module, best, temporary=not save_due)
        trainer.should_stop = trainer.should_stop or stop or self.stopped_early
        self._on_step(self.step, pl_module.total_steps, "  ".join([f"loss {loss:.4f}", *self._pace(pl_module)]))

    def _update_loss(self, trainer: lightning.Trainer) -> float:
        """Return the loss of the update over all its batches and processes."""
        mean = torch.tensor(math.fsum(self._losses) / len(self._losses), dtype=torch.float64)
        self._losses.clear()
        if trainer.world_size > 1:
            mean = trainer.strategy.reduce(mean.to(trainer.strategy.root_device), reduce_op="mean")
        return float(mean)

    def _log_step(self, module: TrainingModule, epoch: int, loss: float) -> None:
        speed = self._speed.row_speed()
        if self.metrics_logger is not None:
            self.metrics_logger.log(
                self.step,
                {
                    "epoch": epoch,
                    "loss": loss,
                    "learning_rate": module.last_learning_rate,
                    "gradient_norm": module.gradient_norm,
                    "tokens_per_second": round(speed, 1),
                },
            )
        rate = f"learning rate {module.last_learning_rate:.3g}"
        parts = [f"step {self.step} of {module.total_steps}", f"loss {loss:.4f}", rate, *self._pace(module)]
        step_log.info("%s", "  ".join(parts))

    def _pace(self, module: TrainingModule) -> list[str]:
        """Return the speed and the time left, if they are known."""
        speed, seconds = self._speed.tokens_per_second(), self._speed.seconds_left(module.total_steps)
        if speed is None or seconds is None:
            return []
        return [f"{speed:,.0f} tokens/s", *([f"{format_duration(seconds)} left"] if seconds else [])]

    def _log_estimate(self, total_steps: int) -> None:
        """Log once how long the run takes, after the first measured steps."""
        if self._is_estimated or not self._speed.is_estimate_due(total_steps):
            return
        self._is_estimated = True
        speed, seconds = self._speed.tokens_per_second(), self._speed.seconds_left(total_steps)
        if speed and seconds:
            plus = "" if self.validate is None else ", plus validations"
            log.info("estimate: %s left at %s tokens/s%s", format_duration(seconds), f"{speed:,.0f}", plus)

    def _any_stop_requested(self, trainer: lightning.Trainer) -> bool:
        """Return whether any process received a signal, so that all stop after the same step."""
        if trainer.world_size == 1:
            return self.stop_requested
        return bool(trainer.strategy.reduce_boolean_decision(self.stop_requested, all=False))

    def _validate(self, trainer: lightning.Trainer, module: TrainingModule) -> bool:
        """Validate the model; return whether it is the best so far."""
        assert self.validate is not None
        with self._speed.pause(), module.full_model(), trainer.precision_plugin.val_step_context():
            try:
                scores = self.validate()
                # the other processes wait in the broadcast below
                lines = self._samples() if trainer.is_global_zero and log.isEnabledFor(logging.INFO) else []
            except NonFiniteError as error:
                raise DivergedError(f"validation failed at step {self.step}: {error}") from None
        self.scores, self.validated_step = trainer.strategy.broadcast(scores), self.step
        monitor = self._recipe.validation.monitor
        best = is_better(monitor, self.scores[monitor], self.best)
        if best:
            self.best = self.scores[monitor]
        if self._improvement.update(self.scores[monitor]):
            self.stopped_early = True
        self._log_validation(best, lines)
        return best

    def _log_validation(self, best: bool, samples: list[str]) -> None:
        scores = {_column(name): value for name, value in self.scores.items()}
        if self.metrics_logger is not None:
            self.metrics_logger.log(self.step, scores)
            self.metrics_logger.flush()
        log.info("step %d  %s%s", self.step, format_scores(scores), "  (best)" if best else "")
        for line in samples:
            log.info("%s", line)
        if self.stopped_early:
            monitor = self._recipe.validation.monitor
            log.info("stopped early: %s has not improved in %d validations", monitor, self._improvement.num_bad)

    def _save(self, trainer: lightning.Trainer, module: TrainingModule, best: bool, temporary: bool) -> None:
        with self._speed.pause():
            self._write_checkpoint(trainer, module, best, temporary)

    def _write_checkpoint(
        self, trainer: lightning.Trainer, module: TrainingModule, best: bool, temporary: bool
    ) -> None:
        with module.full_model() as model:
            if not is_finite(model.parameters()):
                raise DivergedError(
                    f"weights became NaN or infinite at step {self.step}; the last checkpoint is older than that"
                )
            if trainer.is_global_zero:
                self._checkpoints.save(model, self.step, best=best, temporary=temporary)
            else:
                self._checkpoints.record(self.step, best=best, temporary=temporary)
        trainer.save_checkpoint(self._checkpoints.state_path)
        if trainer.is_global_zero:
            self._checkpoints.prune()


def _column(name: str) -> str:
    return "validation_loss" if name == "loss" else name
