"""Predictions of a model on a batch, and their loss."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.equations import losses
from clearhead.kernels.linear_cross_entropy import linear_cross_entropy
from clearhead.layers.embedding import OutputProjection


@dataclass(frozen=True)
class TokenPredictions:
    """Predicted tokens before the output projection, so that all logits are never in memory at once.

    Args:
        hidden_ND: hidden states at the predicted positions.
        output: projection to the logits.
        targets_N: target ids.
        num_sampled: number of tokens in the softmax of the loss in addition to the targets; None for the whole
            vocabulary.
    """

    hidden_ND: Float[Tensor, "N D"]
    output: OutputProjection
    targets_N: Int[Tensor, " N"]
    num_sampled: int | None = None

    def vocabulary(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"] | None, Int[Tensor, " N"]]:
        """Return the output matrix and bias of the tokens in the softmax of the loss, and the targets among them."""
        if self.num_sampled is None:
            return self.output.tokens.weight, self.output.bias, self.targets_N
        return self.output.sample(self.targets_N, self.num_sampled)


@dataclass(frozen=True)
class TopTokens:
    """The most probable tokens of a teacher at the predicted positions.

    Args:
        ids_NK: token ids.
        probs_NK: their probabilities, with a sum of 1.
    """

    ids_NK: Int[Tensor, "N K"]
    probs_NK: Float[Tensor, "N K"]

    def to(self, device: torch.device) -> "TopTokens":
        """Return the tokens on a device."""
        return TopTokens(self.ids_NK.to(device), self.probs_NK.to(device))


@dataclass(frozen=True)
class ClassPredictions:
    """Predicted classes.

    Args:
        logits_NC: logits.
        targets_N: target classes.
    """

    logits_NC: Float[Tensor, "N C"]
    targets_N: Int[Tensor, " N"]


@dataclass(frozen=True)
class EmbeddingPredictions:
    """Embeddings of texts and their loss.

    Args:
        loss: sum over the examples.
        vectors_ND: one embedding per text.
    """

    loss: Float[Tensor, ""]
    vectors_ND: Float[Tensor, "N D"]


@dataclass(frozen=True)
class ScorePredictions:
    """Scores of pairs of texts and their loss.

    Args:
        loss: sum over the examples.
        scores_N: one score per pair, before the activation.
    """

    loss: Float[Tensor, ""]
    scores_N: Float[Tensor, " N"]


Prediction = TokenPredictions | ClassPredictions | EmbeddingPredictions | ScorePredictions


def task_loss(prediction: Prediction, smoothing: float = 0.0) -> Tensor:
    """Return the loss of a prediction, summed over tokens or examples.

    Args:
        prediction: of one batch.
        smoothing: ε of label smoothing; embeddings and scores ignore it.
    """
    match prediction:
        case TokenPredictions():
            output, hidden_ND = prediction.output, prediction.hidden_ND
            if prediction.num_sampled is None:
                return output.loss(hidden_ND, prediction.targets_N, smoothing=smoothing)
            weight, bias, targets = prediction.vocabulary()
            loss = linear_cross_entropy(output.scale_hidden(hidden_ND), weight, targets, bias)
            return loss + output.smoothing_loss(hidden_ND, prediction.targets_N, smoothing)
        case ClassPredictions():
            return losses.cross_entropy(prediction.logits_NC, prediction.targets_N, smoothing=smoothing)
        case EmbeddingPredictions() | ScorePredictions():
            return prediction.loss
    raise AssertionError(prediction)
