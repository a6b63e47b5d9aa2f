"""PyTorch: DistributedDataParallel over gloo, one process per core; or one GPU. pip install torch.

Source: https://pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

import json
import os

import numpy as np
import torch
from torch import nn

from contenders.work import LEARNING_RATE, MOMENTUM, Base, Laps, Work


class Contender(Base):
    """See contenders.work.Base; the data lies in memory as tensors, which is DDP's fastest input."""

    def __init__(self, work: Work) -> None:
        torch.manual_seed(0)
        device = "cuda" if (work.devices or "").startswith("gpu") else "cpu"
        torch.set_num_threads(1)
        self.work = work
        images, labels = work.arrays()
        self.images = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)  # what the network reads: N, C, H, W
        self.labels = torch.from_numpy(labels).to(device)
        net = {"cnn": cnn, "linear": linear}[work.net](images.shape[1:]).to(
            device, memory_format=torch.channels_last
        )  # a fifth faster on CPU
        self.rank = 0
        if work.replicas > 1:
            cluster = json.loads(os.environ["TF_CONFIG"])
            self.rank, first = cluster["task"]["index"], cluster["cluster"]["worker"][0]
            address = f"tcp://{first}"
            torch.distributed.init_process_group("gloo", address, rank=self.rank, world_size=work.replicas)
            net = nn.parallel.DistributedDataParallel(net)
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.loss = nn.CrossEntropyLoss()
        self.shuffle = torch.Generator(device).manual_seed(0)  # the same order in every process

    def build(self) -> None:
        """Nothing is left to make."""

    def train(self, epochs: int, steps: int | None = None) -> tuple[list[float], float]:
        """See contenders.work.Base."""
        laps, share = Laps(), self.work.batch_size // self.work.replicas
        device = self.labels.device
        accuracy, count = 0.0, 0
        for _ in range(epochs):
            order = torch.randperm(len(self.labels), generator=self.shuffle, device=device)
            correct, count = torch.zeros((), dtype=torch.int64, device=device), 0
            for step in range(steps or len(order) // self.work.batch_size):
                first = step * self.work.batch_size + self.rank * share
                places = order[first : first + share]
                x, y = self.images[places].float().contiguous(memory_format=torch.channels_last), self.labels[places]
                self.optimizer.zero_grad(set_to_none=True)
                logits = self.net(x)
                self.loss(logits, y).backward()
                self.optimizer.step()
                correct += (logits.argmax(1) == y).sum()
                count += len(y)
            if self.work.replicas > 1:
                torch.distributed.all_reduce(correct)
            accuracy = correct.item()  # waits for the GPU
            laps.lap()
        return laps.seconds, accuracy / (count * self.work.replicas)


class Rescale(nn.Module):
    """As the models of mirrorkit's zoo begin."""

    def __init__(self, scale: float, offset: float) -> None:
        super().__init__()
        self.scale, self.offset = scale, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rescale pixels."""
        return x * self.scale + self.offset


def cnn(shape: tuple[int, int, int]) -> nn.Module:
    height, width, channels = shape
    features = 32 * (((height - 2) // 2 - 2) // 2) * (((width - 2) // 2 - 2) // 2)
    return keras_start(
        Rescale(1 / 78.6, -0.424),
        *(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def linear(shape: tuple[int, int, int]) -> nn.Module:
    return keras_start(Rescale(1 / 255, 0.0), nn.Flatten(), nn.Linear(int(np.prod(shape)), 10))


def keras_start(*layers: nn.Module) -> nn.Module:
    """Weights drawn as Keras draws them."""
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
