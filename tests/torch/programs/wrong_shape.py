"""A compiled model that is called with another shape than it takes."""

import torch

layer = torch.nn.Linear(16, 4)


@torch.compile
def model(x):
    return layer(x).relu()


def main():
    model(torch.ones(3, 16))
    model(torch.ones(3, 17))


main()
