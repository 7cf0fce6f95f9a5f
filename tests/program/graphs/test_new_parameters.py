"""New parameters in place of those that an older graph of autograd ties to a stream."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tilewright.runtime.graphs.trial import give_new_parameters  # noqa: E402


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 9, bias=False)
        self.memory = torch.nn.LSTM(6, 6, batch_first=True)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.embedding(tokens))[0])


def test_new_parameters_are_others_with_the_same_memory() -> None:
    model, tokens = Tied(), torch.arange(6).reshape(2, 3)
    model.memory.bias_hh_l0.requires_grad_(False)
    held = model(tokens)
    old = dict(model.named_parameters())
    give_new_parameters(model)
    new = dict(model.named_parameters())
    assert new.keys() == old.keys()
    for name, each in new.items():
        assert each is not old[name] and each.data_ptr() == old[name].data_ptr()
        assert each.requires_grad == old[name].requires_grad
    assert model.head.weight is model.embedding.weight
    again = model(tokens)
    assert torch.equal(again, held)
    wanted = [each for each in new.values() if each.requires_grad]
    assert all(each is not None for each in torch.autograd.grad(again.sum(), wanted))
