"""cuTile: its front end, its compiler `tileiras`, and the private parts of cuda-tile that Tilewright uses."""

from tilewright.languages.cutile.cutile import CuTile

LANGUAGE = CuTile()
