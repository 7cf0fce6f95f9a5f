"""On a GPU: a hot torch function is proposed as a kernel that runs, and computes the same within rounding."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.specialists.hot.programs import INFERENCE, KERNELS, program

torch = pytest.importorskip("torch")

from tilewright.specialists import specialist_of  # noqa: E402
from tilewright.specialists.delegation import Delegation  # noqa: E402
from tilewright.specialists.hot import kernel as hot  # noqa: E402
from tilewright.specialists.proposal import NoProposal, ProgramProposal  # noqa: E402


def loaded(path: Path, text: str) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("language", ["cutile", "triton"])
def test_the_written_module_takes_and_computes(language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    file = program(tmp_path / "p", INFERENCE)
    asked = Delegation(language, "RMSNorm is hot", "a run", ("latency in µs",), file=str(file))
    proposals = specialist_of(language).propose(asked)
    assert not isinstance(proposals, NoProposal), proposals
    (proposal,) = proposals
    ((path, text),) = ((path, text) for path, text in proposal.texts.items() if path != file)
    module = loaded(path, text)
    x, weight = torch.randn(3, 7, 500, device="cuda"), torch.rand(500, device="cuda")
    with torch.no_grad():
        assert module.takes(x, weight, 1e-6)
        assert not module.takes(x.half(), weight, 1e-6) and not module.takes(x[..., ::2], weight, 1e-6)
        assert not module.takes(x, weight, 1e-5)
        expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
        torch.testing.assert_close(module.rms_norm(x, weight), expected)
    weight.requires_grad_()
    assert not module.takes(x, weight, 1e-6), "gradients are recorded"


def test_a_hot_kernel_is_captured_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hot, "ITERATIONS", 2)
    file = program(tmp_path / "p", KERNELS)
    asked = Delegation("cutile", "doubled is hot", "a run", ("latency in µs",), file=str(file))
    found = specialist_of("cutile").propose(asked)
    if isinstance(found, NoProposal):
        assert (found.why, "no change of doubled was faster in run" in found.reason) == ("inapplicable", True), found
    else:
        assert all(isinstance(each, ProgramProposal) and each.texts.keys() == {file} for each in found)
    assert file.read_text() == KERNELS
