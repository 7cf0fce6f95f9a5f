"""Runs a model with torch's fake tensors, which have shapes and no values, and notes where the model needs values.

An operation that needs values is noted with the line of the program that called it. The run then goes on with a
stand-in: 1 for a number that the host reads, and for a result of unknown size the one that ones would give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import in_one_line
from tilewright.records import Json
from tilewright.runtime.operations.places import ProgramPlaces, line_at

if TYPE_CHECKING:
    from torch.nn import Module


class FakeRun:
    """One run of a model with fake tensors. ``root``: the folder of the program whose lines are noted."""

    def __init__(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], root: str) -> None:
        self.module, self.args, self.kwargs, self.places = module, args, kwargs, ProgramPlaces(root)
        self.noted: dict[tuple[str, int], list[Json]] = {}

    def record(self) -> dict[str, Json]:
        """Returns ``fake``: file, line, kind and operation of each place; and ``fake_ended``: why the run ended early;
        "" if it did not."""
        try:
            self._run()
            ended = ""
        except Exception as error:  # the stand-ins may not fit, and some operations have no fake form
            ended = in_one_line(error)
        return {"fake": list(self.noted.values()), "fake_ended": ended}

    def _run(self) -> None:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils._pytree import tree_map

        mode = FakeTensorMode(allow_non_fake_inputs=True)

        def fake(value: Any) -> Any:
            return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        state = {name: fake(each) for name, each in tensors.items()}
        args, kwargs = tree_map(fake, (self.args, self.kwargs))
        with mode, self._noting(mode):
            torch.func.functional_call(self.module, state, args, kwargs)

    def _noting(self, fakes: Any) -> Any:
        import torch
        from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_map

        run = self

        class Noting(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                try:
                    return function(*args, **(kwargs or {}))
                except DataDependentOutputException:
                    run.note("host-read", str(function))
                    return _one(args[0]) if function is torch.ops.aten._local_scalar_dense.default else True
                except DynamicOutputShapeException:
                    run.note("data-shape", str(function))

                def ones(each: Any) -> Any:
                    return torch.ones(each.shape, dtype=each.dtype) if isinstance(each, torch.Tensor) else each

                def fake(each: Any) -> Any:
                    return fakes.from_tensor(each) if isinstance(each, torch.Tensor) else each

                with torch.utils._python_dispatch._disable_current_modes():
                    result = function(*tree_map(ones, args), **tree_map(ones, kwargs or {}))
                return tree_map(fake, result)

        return Noting()

    def note(self, kind: str, what: str) -> None:
        """Notes the line of the program that is being executed."""
        if (place := line_at(self.places)) is not None:
            self.noted.setdefault(place, [*place, kind, what])


def _one(tensor: Any) -> bool | int | float:
    import torch

    if tensor.dtype is torch.bool:
        return True
    return 1.0 if tensor.is_floating_point() else 1
