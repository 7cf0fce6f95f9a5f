"""`tilewright lint` over packages of PyPI that a seed draws: sixty findings, with the code that a judge needs.

    python bench/lint_packages.py FOLDER OUT.json [--sheet FOLDER2]
    python bench/lint_packages.py OUT.json --judged A.json B.json

This is the fourth draw, from a new pool: the three before used up the old one, which is in this file's history. FOLDER
keeps the unpacked wheels; a package that is there is not fetched again. A package without a wheel for Python 3.12, with
one above 100 MB, or without a finding is passed over: pip fetches a source distribution only by running its build.
Packages are drawn until ten have findings and sixty findings are there, or the pool ends.
Two judges then read ``sheet.md`` in FOLDER2, apart from one another, and the packages' sources beside it. A verdict
file maps the number of a finding to ``true``, ``useless`` (right, but nobody would change the code for it) or
``false``, each with a reason.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from common import BENCH, made_here, write

from tilewright.errors import TilewrightError
from tilewright.lint.linting import lint_paths
from tilewright.lint.rule import LintFinding

SEED, PACKAGES, FINDINGS = 20261201, 10, 60
EARLIER = [BENCH / "recorded" / f"lint-packages-{draw}2026-11-28.json" for draw in ("first-", "", "third-")]
"""The records of the draws with the seeds 20261128, 20261129 and 20261130. None of their packages is drawn again."""
POOL = """
    adafactor8bit adaptq ai2-olmo-core aither-kvcache amass-kv amazingvmsloth amd-quark arctic-inference arctic-training
    attention-kernels attn-gym auto-round axiomlm axolotl-ringmaster b10-kernel b12x bitcompute blazeinfer bsbr
    cache-dit chill-attention chronicals coda-kernels codon-motif colabfold-kernels cuda-linear-attention dark-rl
    eagle-harness experts4bit-qlora fairchem-core fast-attn-kernels fast-trimul fastbsa fastflash-attention
    flash-attn-res flash-dmattn flash-head flash-hog flash-maxsim flash-msa flash-sparse-attn
    flashattention2-custom-mask flashdiffusion fmchisel fms-acceleration-foak fpscan frankenstein-transformer
    fusion-advisor glq greyhound-kernels gridbook grouped-nf4-gemm h3-sparse-attn hackers-kernels humming-kernels
    hydra-attention kakeyalattice kernel-lens kernelforge kernelsmith kestrel-kernels kmol kt-kernel ktransformers lasp
    leetdecoding light-llm-hp lightning-thunder lion-pytorch liteinfer llm-foundry locks-kv luminamoon mamba3-ssm
    megatron-bridge memodo meshinfer mini-infer morphottention ms-swift nano-vllm-voxcpm nemo-automodel
    noflash-attention nvidia-modelopt nvidia-physicsnemo nvsubquadratic omnimuon opengdn paroquant piper-kernels
    polarquant polylora power-attention qllm retention rosa-torch sabi-mla-vllm scree simpler-flash sketchssm smol-vllm
    sparsepr sparsevideo special-attentions-pack spectralquant specux standardkernels superlinear tessera-quant tilelang
    tileops tokenspeed-kernel tokenspeed-kernel-amd torch-structured torchrec tqkv transformer-engine transformers
    trasmuon-pytorch tree-recurrence trifast ttfs turbo-attn turbopairformer turboquant-plus-vllm turboquant-pro
    turboquantdc vidrial vllm-ascend vllm-df11 vllm-factory vllm-rbln whisper-blaze
""".split()  # noqa: SIM905 -- a literal list would have a line for each name
"""Packages of PyPI, chosen by name and summary alone; no source of theirs was read, and none was fetched.

A list of PyPI's packages with their summaries, made in November 2026, was searched for Triton, CUDA and GPU kernels,
attention, state space models, mixtures of experts, quantization, KV caches, speculative decoding, optimizers, and the
serving and training of language models. Of those found, the pool has the ones that by name or summary have kernels
of their own for Nvidia or AMD GPUs, or extend an engine that has, and well-known libraries that contain Triton kernels.

Left out are the packages of the earlier pools, those that were read while the rules were written (adasplash, bastile,
colsearch, deepspeed, fla-core, flash-attention-triton, flashlib, flashnn, flashinfer, kernel-fun, liger-kernel,
mase-triton, miniworld-engine, moe-ops, ninetoothed, stackkernels, tilegym, triformer, trinix, unsloth-zoo, vllm,
xformers and xjh-gems), Triton itself, and copies and forks of all these, known by name or summary.
"""
LARGEST = 100e6
AROUND = 12
"""Lines of code before and after a finding."""
MOST = 10
"""The most findings of one package among those that are judged."""


def fetched(package: str, folder: Path) -> Path | str:
    """Returns the folder of the unpacked wheel, or the reason why there is none."""
    into = folder / package
    if not into.exists():
        wheels = folder / "wheels" / package
        words = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--dest", str(wheels), package]
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *words], capture_output=True, text=True)
        wheel = next(iter(wheels.glob("*.whl")), None)
        if wheel is None:
            return (done.stderr.strip().splitlines() or ["no wheel"])[-1][:200]
        if wheel.stat().st_size > LARGEST:
            return f"its wheel has {wheel.stat().st_size / 1e6:.0f} MB"
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(into, [name for name in packed.namelist() if name.endswith(".py")])
    return into


def _version(package: str, folder: Path) -> str:
    return next((wheel.name.split("-")[1] for wheel in (folder / "wheels" / package).glob("*.whl")), "")


def row_of(number: int, package: str, finding: LintFinding, root: Path) -> dict[str, Any]:
    path = finding.file
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    first, last = max(0, finding.line - 1 - AROUND), finding.line + AROUND
    code = "\n".join(f"{n + 1:5} {lines[n]}" for n in range(first, min(last, len(lines))))
    return {
        "number": number, "package": package, "file": path.relative_to(root).as_posix(), "line": finding.line,
        "code": finding.code, "rule": finding.rule.name, "level": finding.level, "message": finding.message,
        "title": finding.rule.title, "why": finding.rule.why, "fix": finding.rule.fix, "text": code,
    }  # fmt: skip


def undrawn() -> list[str]:
    """Returns the packages of the pool that no earlier draw put in its order."""
    seen = {package for record in EARLIER for package in json.loads(record.read_text())["order"]}
    return [package for package in POOL if package not in seen]


def drawn(folder: Path) -> dict[str, Any]:
    """Returns the record: the packages in the order in which they were drawn, and the findings to judge."""
    draw, pool = random.Random(SEED), undrawn()
    order, used, passed, every = draw.sample(pool, len(pool)), {}, {}, []
    for package in order:
        if len(used) >= PACKAGES and len(every) >= FINDINGS:
            break
        root = fetched(package, folder)
        try:
            report = lint_paths([root]) if isinstance(root, Path) else root
        except TilewrightError as error:
            report = str(error)
        if isinstance(report, str) or not report.findings:
            passed[package] = report if isinstance(report, str) else f"no finding in {len(report.files)} files"
            continue
        found = sorted(report.findings, key=lambda each: (str(each.file), each.line, each.code))
        used[package] = {
            "version": _version(package, folder),
            "files": len(report.files),
            "findings": len(found),
            "rules": dict(Counter(f.code for f in found)),
        }
        every += [(package, each, root) for each in draw.sample(found, min(MOST, len(found)))]
        print(f"{package:34} {len(report.files):5} files, {len(found):4} findings", flush=True)
    chosen = draw.sample(every, min(FINDINGS, len(every)))
    rows = [row_of(number, package, each, root) for number, (package, each, root) in enumerate(chosen, 1)]
    return {**made_here(), "seed": SEED, "order": order, "packages": used, "passed over": passed, "findings": rows}


def sheet(record: dict[str, Any], sources: Path, into: Path) -> None:
    """Writes the findings for the judges, as lint prints them with the code around each, and copies the sources."""
    rows = record["findings"]
    into.mkdir(parents=True, exist_ok=True)
    for package in dict.fromkeys(row["package"] for row in rows):
        shutil.copytree(sources / package, into / "sources" / package, dirs_exist_ok=True)
    parts = [f"# {len(rows)} findings of `tilewright lint`\n\nThe sources lie in `sources/PACKAGE/`.\n"]
    for row in rows:
        place = f"{row['package']} {record['packages'][row['package']]['version']}, `{row['file']}`, line {row['line']}"
        parts.append(f"## {row['number']}. {place}\n\n{row['level']} {row['rule']}: {row['message']}\n")
        parts.append(f"why: {row['why']}\nfix: {row['fix']}\n\n```python\n{row['text']}\n```\n")
    (into / "sheet.md").write_text("\n".join(parts), encoding="utf-8")


def judged(record: dict[str, Any], files: list[Path]) -> dict[str, Any]:
    """Returns the record with the verdicts, and how many findings are false or useless in the eyes of each judge.

    Leaves out the code, which the packages have.
    """
    verdicts = [json.loads(file.read_text()) for file in files]
    for row in record["findings"]:
        row.pop("text", None)
        row["judged"] = [each[str(row["number"])] for each in verdicts]
    of = [Counter(each[str(row["number"])]["verdict"] for row in record["findings"]) for each in verdicts]
    return {**record, "verdicts": [dict(each) for each in of]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the packages; with --judged, OUT.json")
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--sheet", type=Path, metavar="FOLDER2", help="write sheet.md and the sources there")
    parser.add_argument("--judged", nargs=2, type=Path, metavar=("A.json", "B.json"))
    given = parser.parse_args()
    out = given.folder if given.judged else given.out
    if out is None:
        parser.error("name the file to write: FOLDER OUT.json")
    record = judged(json.loads(out.read_text()), given.judged) if given.judged else drawn(given.folder)
    write(str(out), record)
    if given.sheet:
        sheet(record, given.folder, given.sheet)
    print(record.get("verdicts") or f"{len(record['findings'])} findings of {len(record['packages'])} packages")


if __name__ == "__main__":
    main()
