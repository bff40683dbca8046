"""A training program in PyTorch as users write them: a loader with its own processes, mixed precision, an optimiser.

torch_program.py STEPS          trains, and prints a digest of the weights, which is the same in each undisturbed run
"""

from __future__ import annotations

import hashlib
import os
import sys

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it, PyTorch refuses to multiply deterministically

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = 1024, 256


class Samples(Dataset):  # type: ignore[type-arg,misc,unused-ignore]
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index)), index % 10


def train(steps: int) -> str:
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1)] * 4
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Samples(BATCH * steps), batch_size=BATCH, num_workers=2, pin_memory=True)
    for step, (inputs, labels) in enumerate(loader, 1):
        with torch.autocast("cuda", torch.bfloat16):
            answer = model(inputs.cuda(non_blocking=True))
            loss = nn.functional.cross_entropy(answer, labels.cuda(non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print("step", step, flush=True)  # noqa: T201 - the log of the job
    weights = b"".join(one.detach().cpu().numpy().tobytes() for one in model.parameters())
    return hashlib.sha256(weights).hexdigest()


if __name__ == "__main__":
    print("weights", train(int(sys.argv[1])), flush=True)  # noqa: T201 - the log of the job
