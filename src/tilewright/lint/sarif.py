"""A report as SARIF 2.1.0, which code review tools show beside the lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from tilewright.lint.findings import About, Finding
from tilewright.lint.linting import Report
from tilewright.lint.rules import ABOUT

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "ROOT"


def sarif(report: Report, root: Path, version: str) -> dict[str, Any]:
    """The log of one run. Files below ``root`` are named relative to it, as reviews want them."""
    used = sorted({finding.code for finding in report.findings})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "tilewright lint",
                        "semanticVersion": version,
                        "rules": [_rule(ABOUT[code]) for code in used],
                    }
                },
                "originalUriBaseIds": {ROOT: {"uri": f"{root.resolve().as_uri().rstrip('/')}/"}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, used.index(finding.code), root) for finding in report.findings],
            }
        ],
    }


def _rule(about: About) -> dict[str, Any]:
    help_text = f"{about.why}\n\nFix: {about.fix}"
    markdown = f"{about.why}\n\n**Fix:** {about.fix}"
    return {
        "id": about.code,
        "name": "".join(word.capitalize() for word in about.name.split("-")),
        "shortDescription": {"text": about.title},
        "fullDescription": {"text": about.why},
        "help": {"text": help_text, "markdown": markdown},
        "defaultConfiguration": {"level": about.level},
        "properties": {"tags": list(about.sources)},
    }


def _result(finding: Finding, index: int, root: Path) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": finding.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": _where(finding.file, root),
                    "region": {"startLine": finding.line, "startColumn": finding.column},
                }
            }
        ],
    }


def _where(file: Path, root: Path) -> dict[str, str]:
    absolute = file.resolve()
    try:
        return {"uri": quote(bytes(absolute.relative_to(root.resolve()))), "uriBaseId": ROOT}
    except ValueError:  # outside the root
        return {"uri": absolute.as_uri()}
