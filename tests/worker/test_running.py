"""Launches on memory images, with torch functions on the CPU in place of kernels: bytes go in, bytes come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the worker keeps its memory in torch")

from tilewright.records import Configuration  # noqa: E402
from tilewright.space.space import Space  # noqa: E402
from tilewright.task.task import Task  # noqa: E402
from tilewright.task.tensors import Output, Tensor  # noqa: E402
from tilewright.verify.engine import RunOptions  # noqa: E402
from tilewright.verify.images import Image, image_of, images_for, storage  # noqa: E402
from tilewright.verify.on_gpu import read_back, request_of  # noqa: E402
from tilewright.worker.messages import ImagesRan, RunImages, decode, encode  # noqa: E402
from tilewright.worker.process import images as running  # noqa: E402
from tilewright.worker.process.bound import BoundLaunch  # noqa: E402
from tilewright.worker.process.images import Images, kernel_names  # noqa: E402

CONFIG = Configuration.of({"TILE": 16})
Kernel = Callable[[dict[str, Any]], None]


def task(dtype: str = "float32", in_place: bool = False) -> Task:
    return Task(
        name="double",
        tensors={"x": Tensor(("M", "N"), dtype), "y": Output(("M", "N"), dtype, "x" if in_place else None)},
        reference=lambda x: 2 * x,
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda M, N: M * N,
        space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
        workloads={"only": {"M": 5, "N": 7}},
    )


def images_of(task: Task, layout: str = "row-major", dims: dict[str, int] | None = None) -> dict[str, Image]:
    dims = dims or {"M": 5, "N": 7}
    x = np.arange(dims["M"] * dims["N"]).reshape(dims["M"], dims["N"]) % 15
    return images_for(task, dims, {"x": x.astype(storage(task.tensors["x"].dtype))}, layout, 0xFF)


def ran(
    task: Task, images: dict[str, Image], kernel: Kernel, directory: Path, *, held: Images | None = None,
    early: Kernel = lambda tensors: None, alias: dict[str, str] | None = None, tables: int = 0, **more: Any,
) -> ImagesRan:  # fmt: skip
    """What the worker answers; the images are as the kernel left them."""

    def bind(tensors: Any) -> BoundLaunch:
        early(tensors)
        return BoundLaunch(lambda stream: kernel(tensors), "double", tables)

    step = replace(request_of(task, CONFIG, {"M": 5, "N": 7}, images, RunOptions(alias=alias or {}), directory), **more)
    sent = decode(encode(step))
    assert isinstance(sent, RunImages) and sent == step
    answer = (held or Images("cpu")).run(sent, bind)
    if not step.exact:
        assert read_back(step, images) == ""
    return answer


def double(tensors: dict[str, Any]) -> None:
    tensors["y"].copy_((2 * tensors["x"].float()).to(tensors["y"].dtype))


@pytest.mark.parametrize("layout", ["row-major", "transposed", "sliced", "misaligned"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "float64", "bool"])
def test_a_kernel_sees_the_tensor_and_only_it_changes(layout: str, dtype: str, tmp_path: Path) -> None:
    one = task(dtype)
    images = images_of(one, layout)
    before = images["x"].raw.copy()
    answer = ran(one, images, double, tmp_path)
    wanted = (2 * images["x"].array.astype(np.float64)).astype(storage(dtype))
    assert images["y"].array.tobytes() == wanted.tobytes()
    assert np.array_equal(images["x"].raw, before)
    assert images["x"].damaged() is None and images["y"].damaged() is None
    assert answer == ImagesRan((), None, "not asked for", "double")


def test_strides_and_addresses_are_those_of_the_image(tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(tensors: dict[str, Any]) -> None:
        seen.extend((one.stride(), one.data_ptr() % running.ALIGNMENT) for one in tensors.values())

    images = images_of(task(), "sliced")
    images["x"] = image_of(images["x"].spec, "misaligned", 0xFF)
    ran(task(), images, look, tmp_path)
    (x_strides, x_address), (y_strides, y_address) = seen
    assert (x_strides, y_strides) == (images["x"].strides, images["y"].strides)
    assert (x_address - y_address) % 64 == 4, "torch aligns to 64 bytes on a CPU"


def test_every_launch_is_made(tmp_path: Path) -> None:
    def add(tensors: dict[str, Any]) -> None:
        tensors["y"] += 1

    images = images_of(task())
    images["y"].array[...] = 0
    ran(task(), images, add, tmp_path, launches=5)
    assert (images["y"].array == 5).all()


def test_an_output_that_the_launch_function_wrote_is_named(tmp_path: Path) -> None:
    """trust.md 15: before the kernel has run, nothing may stand in the output."""
    answer = ran(task(), images_of(task()), double, tmp_path, early=double)
    assert answer.touched_early == ("y",)


@pytest.mark.parametrize("early", [False, True])
def test_an_output_in_place_is_its_input(tmp_path: Path, early: bool) -> None:
    one = task(in_place=True)
    images = images_of(one)
    x, poisoned = images["x"].array.copy(), images["y"].raw.copy()
    answer = ran(one, images, double, tmp_path, alias={"y": "x"}, early=double if early else lambda t: None)
    assert (images["x"].array == 2 * x * (2 if early else 1)).all()
    assert np.array_equal(images["y"].raw, poisoned), "it has no memory of its own"
    assert answer.touched_early == (("y",) if early else ())


def test_places_decide_the_addresses(tmp_path: Path) -> None:
    """trust.md 20: equal places, equal addresses, with nothing of the run before in the bytes."""
    held, addresses = Images("cpu"), []

    def look(tensors: dict[str, Any]) -> None:
        addresses.append(tensors["y"].data_ptr())

    for place in (0, 0, 1, 0):
        images = images_of(task())
        ran(task(), images, lambda tensors: look(tensors) or double(tensors), tmp_path, held=held, place=place)  # type: ignore[func-returns-value]
        assert images["y"].damaged() is None
    first, second, third, fourth = addresses
    assert first == second == fourth != third
    for dims in ({"M": 3, "N": 3}, {"M": 50, "N": 7}):
        ran(task(), images_of(task(), dims=dims), look, tmp_path, held=held)
        assert addresses[-1] == first, "an image of another size does not move the next"
    ran(task(), images_of(task(), dims={"M": 500, "N": 700}), look, tmp_path, held=held)


def test_exact_allocations_end_with_the_last_element(tmp_path: Path) -> None:
    """For compute-sanitizer, which sees accesses outside an allocation, not outside a tensor."""
    seen: dict[str, int] = {}

    def look(tensors: dict[str, Any]) -> None:
        for name, one in tensors.items():
            seen[name] = one.untyped_storage().nbytes()
        double(tensors)

    images = images_of(task(), "misaligned")
    before = images["y"].raw.copy()
    ran(task(), images, look, tmp_path, exact=True, fresh=("y",))
    assert seen == {"x": 4 + 5 * 7 * 4, "y": 4 + 5 * 7 * 4}
    assert np.array_equal(images["y"].raw, before)


def test_a_failing_launch_leaves_the_images_alone(tmp_path: Path) -> None:
    def fail(tensors: dict[str, Any]) -> None:
        double(tensors)
        raise RuntimeError("no")

    images = images_of(task())
    with pytest.raises(RuntimeError, match="no"):
        ran(task(), images, fail, tmp_path)
    assert (images["y"].array.view(np.uint8) == 0xFF).all()


def test_bytes_that_are_missing_are_a_reason(tmp_path: Path) -> None:
    """trust.md 29: what the worker did not leave is no answer."""
    images = images_of(task())
    request = request_of(task(), CONFIG, {"M": 5, "N": 7}, images, RunOptions(), tmp_path)
    Path(request.images[1].file).write_bytes(b"123")
    before = images["x"].raw.copy()
    assert read_back(request, images) == f"the worker process left 3 bytes for 'y', not {images['y'].raw.size}"
    Path(request.images[1].file).unlink()
    assert "left 0 bytes for 'y'" in read_back(request, images)
    assert np.array_equal(images["x"].raw, before)


UPLOADED = "Memcpy HtoD (Pageable -> Device)"


def event(name: str, start: float, device: bool = True) -> Any:
    kind = torch.autograd.DeviceType.CUDA if device else torch.autograd.DeviceType.CPU
    return SimpleNamespace(name=name, device_type=kind, time_range=SimpleNamespace(start=start))


def test_kernels_are_the_devices_events_in_order() -> None:
    events = [event("second", 2.0), event("cudaLaunchKernel", 0.0, device=False), event("Memcpy DtoD", 0.5),
              event("first_Kt1", 1.0), event("Memset (Device)", 3.0), event(UPLOADED, 0.7)]  # fmt: skip
    assert kernel_names(events) == [UPLOADED, "first_Kt1", "second"]
    assert kernel_names(None) == []


def test_a_profiler_that_sees_nothing_is_no_proof(tmp_path: Path) -> None:
    """On a CPU not even our own kernel is seen: the names are not known, rather than none."""
    answer = ran(task(), images_of(task()), double, tmp_path, profile=True)
    assert answer.kernels is None
    assert "torch.profiler" in answer.kernels_why


def watched(seen: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, tables: int = 0) -> ImagesRan:
    profiler = SimpleNamespace(stop=lambda: None, events=lambda: [event(n, i) for i, n in enumerate(seen)])
    monkeypatch.setattr(running, "started_profiler", lambda: (profiler, ""))
    return ran(task(), images_of(task()), double, folder, tables=tables, profile=True, launches=2)


@pytest.mark.parametrize(
    ("seen", "kernels"), [(["double_Kt1", "canary"], ("double_Kt1",)), (["canary"], ()), ([], None)]
)
def test_the_last_kernel_that_is_seen_is_our_own(
    seen: list[str], kernels: tuple[str, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watched(seen, tmp_path, monkeypatch).kernels == kernels


@pytest.mark.parametrize(("tables", "uploads"), [(0, 3), (1, 1), (2, 0)])
def test_copies_from_the_host_count_unless_a_list_needs_them(
    tables: int, uploads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trust.md 40: each of the two launches copies a table for each list."""
    seen = [UPLOADED, "double_Kt1", UPLOADED, UPLOADED, "double_Kt1", "canary"]
    answer = watched(seen, tmp_path, monkeypatch, tables)
    assert (answer.kernels, answer.uploads) == (("double_Kt1", "double_Kt1"), uploads)
