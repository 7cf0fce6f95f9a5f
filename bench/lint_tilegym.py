"""`tilewright lint` over the installed TileGym: findings by rule, and a random sample to read by hand.

    python bench/lint_tilegym.py
    python bench/lint_tilegym.py --sample 50 --seed 7

What a person found when reading such a sample lies in bench/recorded/lint-tilegym-2026-11-21.json: for each
finding whether it is true, and why.
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

RECORDED = Path(__file__).parent / "recorded" / "lint-tilegym-2026-11-21.json"


def folder() -> Path:
    """Where TileGym is installed; it is read, never imported."""
    found = importlib.util.find_spec("tilegym")
    if found is None or found.origin is None:
        raise SystemExit("TileGym is not installed; run make setup")
    return Path(found.origin).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, metavar="N", help="print N findings, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root = folder()
    began = time.perf_counter()
    report = lint_paths([root])
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
    read = json.loads(RECORDED.read_text())
    print(f"read by hand: {read['true']} of {len(read['findings'])} true (seed {read['seed']})")


def sample(findings: tuple[LintFinding, ...], size: int, seed: int) -> list[LintFinding]:
    """So many of them, the same ones for the same findings and seed."""
    chosen = random.Random(seed).sample(range(len(findings)), min(size, len(findings)))
    return [findings[index] for index in sorted(chosen)]


if __name__ == "__main__":
    main()
