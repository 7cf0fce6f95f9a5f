"""A change may import only names that the user's modules have: ``except ImportError`` would hide a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.program.reading.new_imports import wrong_import

OPS = "def norm(x):\n    return x\n\n\nscale = 2\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("from ops import gone\nimport other\n")
    (tmp_path / "ops.py").write_text(OPS)
    (tmp_path / "other.py").write_text("from os import *\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("version = 1\n")
    (tmp_path / "package" / "layers.py").write_text("def layer(x): ...\n")
    return tmp_path


WRONG = {
    "from ops import norms": "'norms' of ops.py, which does not have it; known: norm, scale",
    "try:\n    import ops\nexcept ImportError:\n    ops = None\nif ops:\n    ops.norms(1)": "'norms' of ops.py",
    "import ops as o\no.norms": "'norms' of ops.py",
    "from package import layer": "'layer' of __init__.py",
    "from package import layers\nlayers.missing": "'missing' of layers.py",
    "from package.layers import layers": "'layers' of layers.py",
}
RIGHT = (
    "from ops import norm, scale",
    "import ops\nops.norm(ops.scale, ops.__name__)",
    "from package import layers, version\nlayers.layer",
    "from package.layers import layer as one",
    "import package.layers\npackage.layers.anything",
    "from other import anything",
    "import numpy\nnumpy.no_such",
    "import ops\ndef f(ops):\n    return ops.norms",
    "from ops import gone",  # so was the user's file
    "from ops import (",  # the run says what is wrong
)


@pytest.mark.parametrize("text", WRONG)
def test_a_name_that_a_module_lacks_is_named(text: str, root: Path) -> None:
    said = wrong_import({root / "train.py": text + "\n"}, {}, (root,))
    assert said.startswith(f"train.py uses {WRONG[text]}") and "\n" not in said


@pytest.mark.parametrize("text", RIGHT)
def test_names_that_are_there_or_unknown_pass(text: str, root: Path) -> None:
    assert wrong_import({root / "train.py": text + "\n"}, {}, (root,)) == ""


def test_the_texts_of_the_change_count_before_those_on_the_disk(root: Path) -> None:
    train, ops, new = root / "train.py", root / "ops.py", root / "new.py"
    text = "from ops import fused\nimport new\nnew.takes\n"
    assert "'fused' of ops.py" in wrong_import({train: text}, {}, (root,))
    changed = {train: text, ops: "def fused(): ...\n", new: "def takes(): ...\n"}
    assert wrong_import(changed, {}, (root,)) == ""
    assert wrong_import({train: text}, {ops: changed[ops], new: changed[new]}, (root,)) == ""
    assert "'takes' of new.py" in wrong_import({**changed, new: ""}, {}, (root,))


def test_relative_imports_are_found_from_their_package(root: Path) -> None:
    here = root / "package" / "model.py"
    assert wrong_import({here: "from .layers import layer\nfrom . import layers\nfrom .. import ops\n"}, {}, ()) == ""
    assert "'nothing' of layers.py" in wrong_import({here: "from .layers import nothing\n"}, {}, ())
