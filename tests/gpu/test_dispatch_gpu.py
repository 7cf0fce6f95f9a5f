"""A table of `tilewright tune --into`, and the launches of its `Dispatcher`: results, CUDA graphs, threads, memory."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tilewright.cli import main as cli  # noqa: E402
from tilewright.errors import RequestError  # noqa: E402
from tilewright.runtime.dispatch.dispatcher import Dispatcher  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "several_languages.py"
FORCED: dict[str, dict[str, Any]] = {
    "cutile": {"occupancy": 4, "num_worker_warps": None},
    "triton_ptx": {"route": "ptx", "num_warps": 4},
    "triton_tileir": {"route": "tileir", "occupancy": 2},
}
ULPS = 2**-8
"""One unit in the last place of bfloat16, relative."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    words = ("tune", str(EXAMPLE), "--workload", "odd", "--no-store", "--top", "4", "--into", str(folder))
    assert cli.main(words) == 0
    (file,) = folder.iterdir()
    return file


def arrays(M: int = 1024, N: int = 3000) -> dict[str, Any]:
    x = torch.randn(M, N, device="cuda", dtype=torch.bfloat16)
    return {"x": x, "out": torch.empty_like(x)}


def assert_right(given: dict[str, Any]) -> None:
    torch.cuda.synchronize()
    expected = torch.softmax(given["x"].double(), 1)
    assert ((given["out"].double() - expected).abs() <= 2 * ULPS * expected + 1e-30).all()


def stream() -> Any:
    return torch.cuda.current_stream()


def test_the_winner_is_launched(table: Path) -> None:
    (row,) = json.loads(table.read_text())["rows"]
    assert row["us"] > 0 and row["label"] == "odd"
    softmax, given = Dispatcher(str(EXAMPLE), table), arrays()
    chosen = softmax.chosen(**given)
    assert chosen.match == "exact" and dict(chosen.config) == row["config"]
    softmax(stream(), **given)
    assert_right(given)
    nearby = arrays(1500)
    assert softmax.chosen(**nearby).match == "nearest"
    softmax(stream(), **nearby)
    assert_right(nearby)
    far = arrays(64, 256)
    assert softmax.chosen(**far).match == "shipped"
    softmax(None, **far)
    assert_right(far)


@pytest.mark.parametrize("implementation", FORCED)
def test_each_language_agrees_and_is_captured(implementation: str, table: Path) -> None:
    data = json.loads(table.read_text())
    data["rows"][0]["config"] = {"implementation": implementation, **FORCED[implementation]}
    softmax, given = Dispatcher(str(EXAMPLE), data), arrays()
    assert softmax.chosen(**given).config["implementation"] == implementation
    softmax(stream(), **given)
    assert_right(given)
    before = torch.cuda.mem_get_info()
    for _ in range(20):
        softmax(stream(), **given)
    assert torch.cuda.mem_get_info() == before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        softmax(stream(), **given)
    for _ in range(3):
        given["x"].normal_()
        given["out"].zero_()
        graph.replay()
        assert_right(given)
    fresh, second = arrays(), torch.cuda.CUDAGraph()  # other addresses, first seen inside the capture
    with torch.cuda.graph(second):
        softmax(stream(), **fresh)
    second.replay()
    assert_right(fresh)


def test_another_thread_launches_on_its_own_stream(table: Path) -> None:
    softmax, given = Dispatcher(str(EXAMPLE), table), [arrays() for _ in range(4)]
    failures: list[BaseException] = []

    def work(each: dict[str, Any]) -> None:
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.default_stream())
            for _ in range(10):
                softmax(side, **each)
            side.synchronize()
        except BaseException as error:
            failures.append(error)

    softmax(stream(), **given[0])
    threads = [threading.Thread(target=work, args=(each,)) for each in given]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    for one in given:
        assert_right(one)


def test_a_known_call_in_a_thread_without_a_context(table: Path) -> None:
    softmax, given = Dispatcher(str(EXAMPLE), table), arrays()
    softmax(0, **given)
    given["out"].zero_()
    torch.cuda.synchronize()
    thread = threading.Thread(target=softmax, args=(0,), kwargs=given)
    thread.start()
    thread.join()
    assert_right(given)


def test_a_wrong_call_is_one_line(table: Path) -> None:
    softmax, given = Dispatcher(str(EXAMPLE), table), arrays()
    for wrong, said in (
        ({"x": given["x"].half()}, "has dtype float16"),
        ({"x": given["x"].cpu()}, "is on the CPU"),
        ({"x": given["x"][:, ::2]}, "'N' is 1500 in 'x' and 3000 in 'out'"),
        ({"out": given["x"]}, "'out' shares memory with 'x'"),
    ):
        with pytest.raises(RequestError, match=said):
            softmax(stream(), **{**given, **wrong})
