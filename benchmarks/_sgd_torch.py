"""The usual PyTorch loop of the paper's protocol: what sgd.py is measured against.

Prints one JSON line per request read from standard input, {"kernel", "length", "steps"}: the
seconds of processor time a step takes. Run by sgd.py with the Python that has torch.
"""

import json
import math
import sys
import time

import torch
from torch import nn

DIM, BATCH, NOISE, RATE = 5, 128, 0.1, 1e-3


class Attention(nn.Module):
    """One head with four linear maps, no bias, scores over the root of the dimension."""

    def __init__(self, kernel: str):
        super().__init__()
        size = DIM + 1
        self.key, self.query, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.output = nn.Linear(size, 1, bias=False)
        self.kernel = kernel

    def forward(self, prompt: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Return the predictions of a batch."""
        scores = torch.einsum("bld,bd->bl", self.key(prompt), self.query(query))
        scores = scores / math.sqrt(DIM + 1)
        if self.kernel == "softmax":
            weights = torch.softmax(scores, dim=-1)
        else:
            weights = scores / prompt.shape[1]
        read = torch.einsum("bl,bld->bd", weights, self.value(prompt))
        return self.output(read).squeeze(-1)


def batch(length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return fresh prompts, queries and targets."""
    weights = torch.randn(BATCH, DIM) / math.sqrt(DIM)
    x = torch.randn(BATCH, length, DIM)
    noise = math.sqrt(NOISE)
    y = torch.einsum("bld,bd->bl", x, weights) + noise * torch.randn(BATCH, length)
    x_query = torch.randn(BATCH, DIM)
    target = (x_query * weights).sum(-1) + noise * torch.randn(BATCH)
    query = torch.cat([x_query, torch.zeros(BATCH, 1)], dim=-1)
    return torch.cat([x, y[..., None]], dim=-1), query, target


def seconds(kernel: str, length: int, steps: int) -> float:
    """Return the processor time of a step."""
    model = Attention(kernel)
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    began = 0.0
    for step in range(steps + 5):
        if step == 5:
            began = time.process_time()
        prompt, query, target = batch(length)
        loss = nn.functional.mse_loss(model(prompt, query), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return (time.process_time() - began) / steps


def main() -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(seconds(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
