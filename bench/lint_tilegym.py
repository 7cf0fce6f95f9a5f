"""`tilewright lint` over TileGym, or over the Triton kernels of Liger and FLA: findings by rule, and a random sample.

    python bench/lint_tilegym.py
    python bench/lint_tilegym.py --sample 50 --seed 7
    python bench/lint_tilegym.py --triton FOLDER --sample 50
    python bench/lint_tilegym.py --triton FOLDER --set-aside --sample 100

FOLDER has the unpacked wheels of liger-kernel 0.8.5 and fla-core 0.6.0 (pip download --no-deps). With it, only the
rules for Triton count. ``--set-aside`` takes the files that nobody opened while the rules were written; without it they
are left out. What a person found when reading the samples lies in bench/recorded/lint-tilegym-2026-11-21.json and
lint-triton-2026-11-22.json: for each finding whether it is true, and why.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import time
from collections import Counter
from pathlib import Path

from tilewright.lint.linting import lint_paths
from tilewright.lint.rule import LintFinding
from tilewright.lint.rules import rules

RECORDED = Path(__file__).parent / "recorded"
ASIDE = Path(__file__).parents[1] / "tests" / "languages" / "tileir_from_triton" / "set_aside.txt"
TRITON = tuple(rule.code for rule in rules() if rule.code.startswith("TW6"))


def folder() -> Path:
    """Where TileGym is installed; it is read, never imported."""
    found = importlib.util.find_spec("tilegym")
    if found is None or found.origin is None:
        raise SystemExit("TileGym is not installed; run make setup")
    return Path(found.origin).parent


def files(root: Path, is_set_aside: bool) -> list[Path]:
    """The Python files of Liger and FLA: those set aside by name, or all others."""
    aside = {root / line for line in ASIDE.read_text().split()}
    return [path for path in sorted(root.rglob("*.py")) if (path in aside) == is_set_aside]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--triton", type=Path, metavar="FOLDER", help="the unpacked wheels of Liger and FLA")
    parser.add_argument("--set-aside", action="store_true", help="with --triton: the files that are set aside")
    parser.add_argument("--sample", type=int, metavar="N", help="print N findings, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root = options.triton or folder()
    paths = files(root, options.set_aside) if options.triton else [root]
    began = time.perf_counter()
    report = lint_paths(paths, select=TRITON if options.triton else (), ignore=() if options.triton else TRITON)
    seconds = time.perf_counter() - began
    if options.sample:
        for finding in sample(report.findings, options.sample, options.seed):
            print(
                f"{finding.file.relative_to(root)}:{finding.line} {finding.level} {finding.rule.name} {finding.message}"
            )
        return
    print(f"{len(report.findings)} findings in {len(report.files)} files, {seconds:.1f} s")
    counts = Counter((finding.code, finding.level, finding.rule.name) for finding in report.findings)
    for (code, level, name), count in sorted(counts.items()):
        print(f"{count:>5}  {level:<8} {code} {name}")
    name = "lint-triton-2026-11-22" if options.triton else "lint-tilegym-2026-11-21"
    read = json.loads((RECORDED / f"{name}.json").read_text())
    for part in read["samples"] if options.triton else [read]:
        print(f"read by hand: {part['true']} of {len(part['findings'])} true (seed {part['seed']})")


def sample(findings: tuple[LintFinding, ...], size: int, seed: int) -> list[LintFinding]:
    """So many of them, the same ones for the same findings and seed."""
    chosen = random.Random(seed).sample(range(len(findings)), min(size, len(findings)))
    return [findings[index] for index in sorted(chosen)]


if __name__ == "__main__":
    main()
