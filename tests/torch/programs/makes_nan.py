"""A compiled model that makes NaN: a logarithm of what is below zero."""

import torch


def inner(x):
    return torch.log(x - 10.0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.second(inner(hidden)).softmax(-1)


torch.manual_seed(0)
model = torch.compile(Model())
with torch.no_grad():
    result = model(torch.ones(8, 16))
print("sum", result.sum().item())
