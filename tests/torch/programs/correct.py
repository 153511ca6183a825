"""Two steps of training, with a mask of infinities on the way: nothing is wrong."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.GELU(), torch.nn.Linear(33, 7))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile
def loss_of(x, y):
    mask = torch.full((7, 7), float("-inf")).triu(1)
    return torch.nn.functional.mse_loss((model(x) + mask).softmax(-1), y)


for _ in range(2):
    optimizer.zero_grad()
    loss = loss_of(torch.randn(7, 16), torch.rand(7, 7))
    loss.backward()
    optimizer.step()
print("loss", loss.item())
