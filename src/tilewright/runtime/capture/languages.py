"""The languages whose launches are captured."""

from __future__ import annotations

from tilewright.runtime.capture.language import CapturedLanguage
from tilewright.runtime.capture.of_cutile import CapturedCuTile
from tilewright.runtime.capture.of_triton import CapturedTriton

LANGUAGES: tuple[CapturedLanguage, ...] = (CapturedCuTile(), CapturedTriton())


def captured_language(name: str) -> CapturedLanguage:
    """Returns the language called ``name``, the name that a record of launches contains."""
    return next(language for language in LANGUAGES if language.name == name)
