"""A report as SARIF 2.1.0, which code review tools show beside the lines."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from tilewright.lint.linting import LintReport
from tilewright.lint.rule import LintFinding, Rule
from tilewright.records import Json

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "ROOT"


def sarif(report: LintReport, root: Path, version: str) -> dict[str, Json]:
    """The log of one run. Files below ``root`` are named relative to it, as reviews want them."""
    used = sorted({finding.rule for finding in report.findings}, key=lambda rule: rule.rule_id)
    driver: Json = {"name": "tilewright lint", "semanticVersion": version, "rules": [_rule(rule) for rule in used]}
    run: Json = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {ROOT: {"uri": f"{root.resolve().as_uri().rstrip('/')}/"}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, used.index(finding.rule), root) for finding in report.findings],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> Json:
    return {
        "id": rule.rule_id,
        "name": "".join(word.capitalize() for word in rule.name.split("_")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\n\nFix: {rule.fix}", "markdown": f"{rule.why}\n\n**Fix:** {rule.fix}"},
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": list(rule.sources)},
    }


def _result(finding: LintFinding, index: int, root: Path) -> Json:
    region: Json = {"startLine": finding.line, "startColumn": finding.column}
    absolute = finding.file.resolve()
    location: Json = {"uri": absolute.as_uri()}
    if absolute.is_relative_to(root.resolve()):
        location = {"uri": quote(bytes(absolute.relative_to(root.resolve()))), "uriBaseId": ROOT}
    place: Json = {"artifactLocation": location, "region": region}
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": place}],
    }
