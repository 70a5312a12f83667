"""Several processes that train one model: each takes its rows of every batch, and their gradients are added.

`torchrun` starts them and says by environment variables who is who (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`). All make the
same plan of batches, so none has a batch more than another; a batch with fewer rows than processes leaves some of them
without a row for that step. The first process, rank 0, evaluates, decides, prints and writes; the others follow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, distributed

from unrolled.errors import ConfigError

__all__ = ["Processes", "connected"]


class Processes:
    """The processes that train together; alone there is one, and nothing is exchanged.

    Parameters
    ----------
    rank, size : int
        Which process this is, and how many there are.
    control : process group, optional
        Exchanges numbers between hosts, beside the group that adds gradients where they lie.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, control: distributed.ProcessGroup | None = None) -> None:
        self.rank = rank
        self.size = size
        self._control = control

    @property
    def is_main(self) -> bool:
        """Whether this process evaluates, decides and writes."""
        return self.rank == 0

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in one exchange."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(list(tensors), [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])

    def largest(self, *numbers: float) -> list[float]:
        """The largest of each number over all processes."""
        if self.size == 1:
            return list(numbers)
        shared = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX, group=self._control)
        return shared.tolist()

    def of_main(self, *numbers: float) -> list[float]:
        """The numbers of the first process, everywhere."""
        if self.size == 1:
            return list(numbers)
        shared = torch.tensor(numbers, dtype=torch.float64)
        distributed.broadcast(shared, 0, group=self._control)
        return shared.tolist()

    def wait(self) -> None:
        """Until all processes are here."""
        self.largest(0.0)


@contextmanager
def connected(device: torch.device) -> Iterator[tuple[Processes, torch.device]]:
    """The processes that `torchrun` started, connected inside the block, and the device of this one.

    Parameters
    ----------
    device : torch.device
        Where models lie; each process takes a GPU of its own.

    Raises
    ------
    ConfigError
        If there are several processes and their device is neither the CPU nor CUDA.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Processes(), device
        return
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"several processes train on cpu or cuda, got device {device.type}; start one alone")
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), size, control=distributed.new_group(backend="gloo")), device
    finally:
        distributed.destroy_process_group()
