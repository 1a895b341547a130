"""One process or many: what `torchrun` says, and the few collectives that training needs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class World:
    """This process among all of one run."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over all processes."""
        if self.size == 1:
            return module
        return DistributedDataParallel(module, device_ids=[self.device] if self.device.type == "cuda" else None)

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def agree(self, number: int) -> int:
        """The first process's number, in all."""
        box = torch.tensor([number], device=self.device)
        if self.size > 1:
            dist.broadcast(box, 0)
        return int(box.item())

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


def join(device: str | None = None) -> World:
    """Join the run that the environment describes (RANK, WORLD_SIZE, … of torchrun), or a run of one process.

    device: "cpu", "cuda" or None for a GPU where there is one. NCCL connects GPUs, gloo everything else.
    """
    rank, size, local = (int(os.environ.get(name, default)) for name, default in
                         (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")))  # fmt: skip
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.device(kind, local) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(place)
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(minutes=10))
    return World(rank, size, place)


def leave() -> None:
    """Close what `join` opened."""
    if dist.is_initialized():
        dist.destroy_process_group()
