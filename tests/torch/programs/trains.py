"""Three steps of training a small model; with `nan`, a norm of zeros divides by zero in the second
one."""

import sys

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(32, 64)
        self.outer = torch.nn.Linear(64, 8)

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.inner(x))
        size = x.pow(2).sum(-1, keepdim=True).sqrt()
        return self.outer(hidden) * (x.abs().sum(-1, keepdim=True) / size)


torch.manual_seed(0)
model = torch.compile(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    x = torch.rand(16, 32)
    if "nan" in sys.argv and step == 1:
        x[3] = 0
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
