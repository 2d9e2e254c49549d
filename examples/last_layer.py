"""A mixture of Gaussians as the last layer of a network.

The same small network is trained on digits with `nn.Linear` and with a sparse `MixtureHead` at its
end: two Gaussians a class, of whose weights all but a few turn out not to be needed.

    python examples/last_layer.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy

from mixtura.nn import MixtureHead, kl_weight

N_EPOCHS = 60
N_FEATURES = 32
N_CLASSES = 10


def load() -> list[torch.Tensor]:
    """Training and test digits, then their labels."""
    X, y = load_digits(return_X_y=True)
    split = train_test_split(X / 16, y, test_size=0.3, stratify=y, random_state=0)
    rows, labels = split[:2], split[2:]
    return [torch.from_numpy(part).float() for part in rows] + [*map(torch.from_numpy, labels)]


def make_body() -> nn.Module:
    """Everything but the last layer; the norm keeps features of the order of one."""
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, N_FEATURES), nn.BatchNorm1d(N_FEATURES)
    )


def train(model: nn.Sequential, X: torch.Tensor, y: torch.Tensor) -> None:
    """The usual loop; the head adds a single term to the loss."""
    head = model[-1]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.train()
    for epoch in range(N_EPOCHS):
        for index in torch.randperm(len(X)).split(128):
            loss = cross_entropy(model(X[index]), y[index])
            if isinstance(head, MixtureHead):
                loss = loss + kl_weight(epoch, N_EPOCHS) * head.kl() / len(X)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()


def accuracy(model: nn.Module, X: torch.Tensor, y: torch.Tensor) -> float:
    """Share of rows that are recognized."""
    return float((model(X).argmax(1) == y).float().mean())


def main() -> None:
    """Both layers, then the second one without the weights it does not need."""
    X, X_test, y, y_test = load()
    for name, head in (
        ("nn.Linear", lambda: nn.Linear(N_FEATURES, N_CLASSES)),
        ("MixtureHead", lambda: MixtureHead(N_FEATURES, N_CLASSES, 2, "diag")),
    ):
        torch.manual_seed(0)
        model = nn.Sequential(make_body(), head())
        train(model, X, y)
        print(f"{name:<12} accuracy {accuracy(model, X_test, y_test):.3f}")

    head, small = model[-1], model[-1].prune()
    model[-1] = small
    print(f"{'pruned':<12} accuracy {accuracy(model, X_test, y_test):.3f}")
    print(f"zero weights: {head.sparsity():.0%} of {head.weight.numel()} before pruning,", end=" ")
    print(f"{small.sparsity():.0%} of {small.weight.numel()} after")


if __name__ == "__main__":
    main()
