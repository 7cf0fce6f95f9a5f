"""Versions side by side: own copies, own code, and always the baseline's judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.optimize.kit import candidates

from tilewright.candidate.client import Forbidden
from tilewright.compile.compile import Unit, launch_of
from tilewright.errors import TaskError
from tilewright.hardware.architectures import default_board
from tilewright.languages import language_of
from tilewright.languages.base import Lowered
from tilewright.optimize.versions.version import KernelVersion, materialise, read_source
from tilewright.task.loading import editable_files, load_task, where_is
from tilewright.task.task import Task

OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)

def launch(x, y, M, config):
    return tw.Launch(scale, (M // config.TILE,), (x, y, config.TILE))

task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("M",), "float32"), "y": tw.Output(("M",), "float32")},
    reference=lambda x: 2 * x,
    launch=launch,
    flops=lambda M: M,
    space=tw.Space(constants={"TILE": (64, 128)}, shipped={"TILE": 64}),
    workloads={"small": {"M": 4096}},
)
"""
BOARD = default_board("sm_90")


@pytest.fixture
def ops(tmp_path: Path) -> Path:
    path = tmp_path / "user" / "ops.py"
    path.parent.mkdir()
    path.write_text(OPS)
    return path


Made = Callable[..., Task]


@pytest.fixture
def baseline(ops: Path) -> Task:
    return load_task(str(ops))


@pytest.fixture
def made(baseline: Task, ops: Path, tmp_path: Path) -> Made:
    """The task of a version in which ``old`` is ``new``."""

    def made(name: str = "baseline", old: str = "", new: str = "") -> Task:
        text = OPS.replace(old, new) if old else OPS
        version = materialise(tmp_path / "versions", name, {ops: text})
        return candidates().task(baseline, str(ops), version.files)

    return made


def lowered(task: Task) -> Lowered:
    unit = Unit(task.workload("small"), task.space.shipped, BOARD)
    launch, hints = launch_of(task, unit)
    found = language_of(launch.kernel).lower(launch, hints, unit.configuration, BOARD.arch)
    assert isinstance(found, Lowered), found
    return found


# Copies


def test_a_version_is_copies_in_a_folder_of_its_own(ops: Path, tmp_path: Path) -> None:
    version = materialise(tmp_path / "v", "3:ROWS=4", {ops: "text\r\nü"})
    (copy,) = map(Path, version.files.values())
    assert version == KernelVersion("3:ROWS=4", {str(ops): str(copy)})
    assert copy.name == "ops.py" and copy.parent.parent == tmp_path / "v"
    assert copy.parent.name.startswith("3-ROWS=4-")
    assert copy.read_bytes() == "text\r\nü".encode()
    assert read_source(copy) == "text\r\nü"
    assert ops.read_text() == OPS


@pytest.mark.parametrize("names", [("3:A=4", "3-A=4"), ("a/b", "a b"), ("..", "."), ("x" * 300, "x" * 301)])
def test_no_two_versions_share_a_folder_nor_leave_it(ops: Path, tmp_path: Path, names: tuple[str, str]) -> None:
    versions = [materialise(tmp_path / "v", name, {ops: name}) for name in names]
    copies = [Path(copy) for version in versions for copy in version.files.values()]
    assert [copy.read_text() for copy in copies] == list(names)
    assert all(copy.parent.parent == tmp_path / "v" for copy in copies)


def test_files_of_one_name_keep_the_folders_that_tell_them_apart(tmp_path: Path) -> None:
    files = {tmp_path / "a" / "deep" / "ops.py": "1", tmp_path / "b" / "ops.py": "2", tmp_path / "ops.py": "3"}
    version = materialise(tmp_path / "v", "1", files)
    assert {Path(file): Path(copy).read_text() for file, copy in version.files.items()} == files
    assert {Path(copy).relative_to(tmp_path / "v" / "1").as_posix() for copy in version.files.values()} == {
        "a/deep/ops.py", "b/ops.py", "ops.py"
    }  # fmt: skip


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"# \xe9")
    with pytest.raises(TaskError, match="latin.py is not UTF-8; fix: "):
        read_source(tmp_path / "latin.py")
    with pytest.raises(TaskError, match="none.py: No such file or directory"):
        read_source(tmp_path / "none.py")


# Loading and compiling


def test_two_versions_of_a_kernel_lower_to_their_own_tile_ir(made: Made, ops: Path) -> None:
    """In one process, in any order: no version's code or text leaks into another's."""
    baseline, three = made(), made("3", "* 2", "* 2 + 7")
    four = made("4", "* 2", "* 2 - 7")  # the same size, perhaps the same second
    codes = [lowered(task).code for task in (baseline, three, four, baseline, three)]
    assert codes[0] == codes[3] and codes[1] == codes[4]
    assert len(set(codes)) == 3
    assert [task.file for task in (baseline, three, four)] == [ops] * 3
    assert editable_files(three) == (ops,)
    assert where_is(three) == f"{ops}:scale"


def test_what_is_wrong_with_a_version_is_one_error(made: Made) -> None:
    for old, new, said in (
        ("* 2)\n", "* 2\n", "ops.py:6: does not import: SyntaxError: "),
        ("import cuda.tile as ct", "import no_such_module", "ops.py:1: does not import: ModuleNotFoundError"),
        ("task = ", "del launch\ntask = ", "does not import: NameError"),
        ("task = tw.Task(", "task = dict(", "holds no task"),
        ('shipped={"TILE": 64}', 'shipped={"TILES": 64}', "TILES"),
    ):
        with pytest.raises(TaskError) as caught:
            made(said, old, new)
        assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_version_without_its_task_is_the_versions_fault(ops: Path, tmp_path: Path) -> None:
    version = materialise(tmp_path / "v", "1", {ops: OPS.replace('"scale"', '"other"')})
    with pytest.raises(TaskError, match="'scale'; known: other"):
        candidates().task(load_task(str(ops)), f"{ops}:scale", version.files)


# The judge


def test_the_judge_is_the_baselines(made: Made, baseline: Task) -> None:
    """An edit supplies a kernel and its configurations; it never changes what they are judged by."""
    cheat = """tensors={"x": tw.Tensor(("M",), "float32"), "y": tw.Output(("M",), "float16")},
    independent=('M',), trusted=lambda x: x, serves=lambda M: False, precision="float16", deterministic=False,
    special_values=True, layouts=("sliced",), bytes_moved=lambda M: 1, reference=lambda x: 0 * x"""
    old = OPS[OPS.index("tensors=") : OPS.index(",\n    launch=")]
    task = made("1", old, cheat)
    assert replace(task, launch=baseline.launch, space=baseline.space) == baseline
    assert task.file == baseline.file


def test_the_space_is_the_versions_under_the_baselines_predicates(ops: Path, tmp_path: Path) -> None:
    space = 'space=tw.Space(constants={"TILE": (64, 128)}, shipped={"TILE": 64}'
    asked = OPS.replace(space, space + ", where=[lambda TILE, M: TILE <= M]")
    ops.write_text(asked)
    larger = asked.replace("(64, 128)", "(32, 128)").replace('{"TILE": 64}', '{"TILE": 128}').replace("<=", ">=")
    version = materialise(tmp_path / "v", "1", {ops: larger})
    task = candidates().task(load_task(str(ops)), str(ops), version.files)
    assert task.space.constants == {"TILE": (32, 128)} and str(task.space.shipped) == "TILE=128"
    assert task.space.allows(task.space.shipped, 90, {"M": 100}) == "'TILE <= M' does not hold for TILE=128, M=100"


def test_another_task_is_forbidden(made: Made) -> None:
    with pytest.raises(Forbidden, match="the task is called 'other', but its name must stay 'scale'"):
        made("1", 'name="scale"', 'name="other"')


BACKWARD = """back = tw.Task(
    name="back", tensors={"d_y": tw.Tensor(("M",), "float32"), "d_x": tw.Output(("M",), "float32")},
    reference=lambda d_y: 2 * d_y, launch=lambda d_y, d_x, M, config: launch(d_y, d_x, M, config), flops=lambda M: M,
    space=tw.Space(constants={"TILE": (64, 128)}, shipped={"TILE": 64}), workloads={"small": {"M": 4096}})
task = tw.Task(backward=back,"""


def test_the_backward_is_judged_by_the_baselines_too(ops: Path, tmp_path: Path) -> None:
    with_backward = OPS.replace("task = tw.Task(", BACKWARD)
    edited = with_backward.replace("reference=lambda d_y: 2 * d_y", "reference=lambda d_y: d_y").replace(
        ")) * 2", ")) * 3"
    )
    version = materialise(tmp_path / "v", "1", {ops: edited})
    ops.write_text(with_backward)
    where = f"{ops}:scale"
    baseline = load_task(where)
    task = candidates().task(baseline, where, version.files)
    assert task.backward is not None and baseline.backward is not None
    assert task.backward.reference is baseline.backward.reference
    assert lowered(task.backward).code != lowered(baseline.backward).code
    plain = materialise(tmp_path / "v", "2", {ops: OPS})
    with pytest.raises(Forbidden, match="no longer has a backward task"):
        candidates().task(baseline, where, plain.files)
    with pytest.raises(Forbidden, match="has a new backward task"):
        candidates().task(replace(baseline, backward=None), where, version.files)


def test_the_examples_load_as_versions(tmp_path: Path) -> None:
    examples = Path(__file__).parents[2] / "examples"
    for path in (examples / "matmul.py", examples / "rms_norm.py"):
        version = materialise(tmp_path, path.stem, {path: read_source(path) + "\n# edited\n"})
        assert candidates().task(load_task(str(path)), str(path), version.files).file == path
