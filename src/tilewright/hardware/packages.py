"""Which pip packages are installed, without importing them."""

from __future__ import annotations

from importlib import metadata


def installed_version(package: str) -> str | None:
    """Of a pip package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
