"""Triton: its front end, the compilation to PTX, and the private parts of triton that Tilewright uses."""

from tilewright.languages.triton.triton import Triton

LANGUAGE = Triton()
