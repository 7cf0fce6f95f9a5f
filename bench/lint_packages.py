"""`tilewright lint` over packages of PyPI that a seed draws: sixty findings, with the code that a judge needs.

    python bench/lint_packages.py FOLDER OUT.json [--sheet FOLDER2]
    python bench/lint_packages.py OUT.json --judged A.json B.json

This is the third draw. Its packages are those of the pool that the second did not draw. FOLDER keeps the unpacked
wheels; a package that is there is not fetched again. A package without a wheel for Python 3.12, with one above 100 MB,
or without a finding is passed over. Packages are drawn until ten have findings and sixty findings are there, or the
pool ends.
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

SEED, PACKAGES, FINDINGS = 20261130, 10, 60
SECOND = BENCH / "recorded" / "lint-packages-2026-11-28.json"
"""The record of the second draw (seed 20261129)."""
POOL = """
    accelerated-scan adam-mini aphrodite-engine areal auto-gptq axolotl bitblas bm3d-triton boltz came-pytorch
    causal-conv1d colortransfer-triton colossalai comfy-kitchen compressed-tensors crossentropy-triton
    cuda-kernel-verifier cuda-triton-multiarch cupydiff cut-cross-entropy cutile-gpt cutile-stencil cuzipnn diffsynth
    dinfer disentangled-flash dlblas dsalt ebt-flash-attention eigentune emerging-optimizers evo2 exllamav2 exllamav3
    fast-plaid fastaf fasterkernels fastvideo flame flash-attention-softmax-n flash-attention-x flash-attn-triton
    flash-colsum flash-kmeans flash-mlm flash-sinkhorn flash-swiglu-mlp flash-xlstm-exp flashslice flashspec
    fouroversix freesolo-chalk fused-turboquant fvdb galore-torch geak-eval gemlite gptq-triton gptqmodel gpucheck
    gram-newton-schulz grouped-mm-bf16 gru-qat heavyball helion hilbertsfc hqq hydragen ibu-boost internevo jax-triton
    jvp-flash-attention kernels kvcached kvpress lanczos-triton late-interaction-kernels lightllm llmcompressor
    lmcache local-corr-lumi localcorr mamba-ssm mandelbrot-benchmark megablocks megatron-core memeff minference
    mingru-scans mirai-compiler mlstm-kernels nano-triton nanotron natten nunchaku omnivoice-triton onecomp-runtime
    openfold optimum-quanto orda-kernel otf-llm parallax-kernel ply-ai prlx pytorch-optimizer qattn qwen3-tts-triton
    rfdetr-ghost ring-flash-attn rotalabs-accel saga-activation sageattention siglip-kernel simpletuner
    space-filling-pytorch spconv-triton st-attn stanford-stk stripedhyena tetherpy titans-pytorch tokenspeed-iris
    tokenspeed-triton-kernels tokenspeed-tritonblas torch-fps torchnorm torchtitan torchtune tridec triton-augment
    triton-autolib triton-blackhole triton-copilot triton-csprng triton-kernels triton-lib triton-muon-adamw
    triton-neural triton-qml triton-runner triton-sigmoid triton-sleuth triton-submodular triton-transformer
    triton-util triton-utils triton-viz tritonllm tritonparse ttsem turboadam turbopress turboquant turboquant-engine
    turboquant-gpu turboquant-vllm use-triton-in-paddle verl vllm-omni vsa xfuser xlstm xtuner yunchang zion-60eb
""".split()  # noqa: SIM905 -- a literal list would have a line for each name
"""Packages of PyPI whose summary names Triton or cuTile, or that are known to have such kernels.
The second draw took 42 of them.

Left out are packages that were read while the rules were written: those of the first draw with seed 20261128 (whose
findings led to narrower rules), adasplash, bastile, colsearch, deepspeed, fla-core, flash-attention-triton, flashlib,
flashnn, flashinfer, kernel-fun, liger-kernel, mase-triton, miniworld-engine, moe-ops, ninetoothed, stackkernels,
tilegym, triformer, trinix, unsloth-zoo, vllm, xformers and xjh-gems, and copies of them.
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
    """Returns the packages of the pool that the second draw neither used nor passed over."""
    second = json.loads(SECOND.read_text())
    return [package for package in POOL if package not in second["packages"] and package not in second["passed over"]]


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
