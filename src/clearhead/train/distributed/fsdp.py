"""A model whose weights, gradients and optimiser's state are divided among the processes: FSDP2, as torch has it."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from clearhead.stacks.decoder import DecoderLayer
from clearhead.stacks.encoder import EncoderLayer
from clearhead.train.checkpointing import read_state
from clearhead.train.recipe.recipe import Recipe


class ShardsStrategy(ModelParallelStrategy):
    """Lightning's strategy, with whole checkpoints: those of one process, of copies and of shards are alike.

    Args:
        world: how many processes there are.
        backend: what they talk by.
    """

    def __init__(self, world: int, backend: str) -> None:
        super().__init__(world, 1, save_distributed_checkpoint=False, process_group_backend=backend)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        # Lightning's own takes the optimiser's parameters to be in the model's order; ours stand in groups
        checkpoint = read_state(Path(checkpoint_path))
        assert self.model is not None
        with torch.no_grad():  # torch's own function leaves out the second name of a tied matrix
            for name, mine in self.model.state_dict().items():
                mine.copy_(like(mine, checkpoint["state_dict"][name].to(mine.device)))
        whole = StateDictOptions(full_state_dict=True)
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            groups: list[dict[str, Any]] = []
            state: dict[str, Any] = {}
            for held, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
                known = [names[id(parameter)] for parameter in held["params"]]
                groups.append({**group, "params": known})
                numbers = zip(known, group["params"], strict=True)
                state |= {name: saved["state"][number] for name, number in numbers if number in saved["state"]}
            set_optimizer_state_dict(self.model, optimizer, {"state": state, "param_groups": groups}, options=whole)
        return checkpoint


def check(recipe: Recipe) -> None:
    """What goes with divided weights.

    Raises:
        ValueError: what does not.
    """
    told = recipe.regularize
    if told.layer_drop:
        raise ValueError(
            "training.shard and regularize.layer_drop do not go together: a layer that one process leaves out is "
            "waited for by the others"
        )
    if told.l2_penalty:
        raise ValueError("training.shard and regularize.l2_penalty do not go together; regularize.weight_decay does")


def divide(learner: nn.Module, mesh: DeviceMesh) -> None:
    """Divides what learns, layer by layer: each is whole while it computes, and what lies around them through a step.

    Source: Zhao et al. 2023, "PyTorch FSDP", Section 3; Rajbhandari et al. 2020, "ZeRO", Section 5.3
    """
    for module in learner.modules():
        if isinstance(module, EncoderLayer | DecoderLayer):
            fully_shard(module, mesh=mesh)
    fully_shard(learner, mesh=mesh)
    register_fsdp_forward_method(learner, "training_step")


def gather(model: nn.Module, whole: nn.Module) -> None:
    """Fills a model with the weights of a divided one; all processes call it together."""
    with torch.no_grad():
        for mine, filled in zip(model.parameters(), whole.parameters(), strict=True):
            filled.copy_(full(mine))


def full(tensor: Tensor) -> Tensor:
    """A tensor that may be divided, whole."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor, divided as another one is."""
    if not isinstance(tensor, DTensor):
        return whole
    return distribute_tensor(whole, tensor.device_mesh, tensor.placements)
