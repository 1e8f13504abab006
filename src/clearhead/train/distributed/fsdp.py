"""Fully sharded data parallelism (FSDP2): the processes share weights, gradients and optimizer state."""

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
from clearhead.train.loop.checkpointing import read_state


class FullCheckpointStrategy(ModelParallelStrategy):
    """Lightning's strategy with unsharded checkpoints, which have the same format as those of one process or of DDP.

    Args:
        world_size: number of processes.
        backend: communication backend.
    """

    def __init__(self, world_size: int, backend: str) -> None:
        super().__init__(world_size, 1, save_distributed_checkpoint=False, process_group_backend=backend)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        # Lightning's method assumes optimizer parameters in the model's order; ours are grouped by weight decay
        checkpoint = read_state(Path(checkpoint_path))
        assert self.model is not None
        with torch.no_grad():  # torch's own function skips the second name of a tied matrix
            for name, parameter in self.model.state_dict().items():
                parameter.copy_(shard_like(parameter, checkpoint["state_dict"][name].to(parameter.device)))
        options = StateDictOptions(full_state_dict=True)
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            state = _optimizer_state_by_name(self.model, optimizer, saved)
            set_optimizer_state_dict(self.model, optimizer, state, options=options)
        return checkpoint


def _optimizer_state_by_name(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]
) -> dict[str, Any]:
    """Return a saved optimizer state with parameter names instead of numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups: list[dict[str, Any]] = []
    state: dict[str, Any] = {}
    for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        group_names = [names[id(parameter)] for parameter in group["params"]]
        groups.append({**saved_group, "params": group_names})
        numbered = zip(group_names, saved_group["params"], strict=True)
        state |= {name: saved["state"][number] for name, number in numbered if number in saved["state"]}
    return {"state": state, "param_groups": groups}


def shard_module(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard a module layer by layer: a layer is gathered while it computes, the rest during a whole step.

    Source: Zhao et al. 2023, "PyTorch FSDP", Section 3; Rajbhandari et al. 2020, "ZeRO", Section 5.3

    Args:
        module: the module with the training step.
        mesh: the processes.
    """
    for layer in module.modules():
        if isinstance(layer, EncoderLayer | DecoderLayer):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(module, "training_step")


def gather_parameters(sharded: nn.Module, target: nn.Module) -> None:
    """Copy the weights of a sharded model into an unsharded one; all processes have to call this together."""
    with torch.no_grad():
        for source, parameter in zip(sharded.parameters(), target.parameters(), strict=True):
            parameter.copy_(full_tensor(source))


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor unsharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(reference: Tensor, full: Tensor) -> Tensor:
    """Return a full tensor, sharded like the reference."""
    if not isinstance(reference, DTensor):
        return full
    return distribute_tensor(full, reference.device_mesh, reference.placements)
