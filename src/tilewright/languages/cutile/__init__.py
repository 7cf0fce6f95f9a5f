"""cuTile: its front end, its compiler `tileiras`, and the private parts of cuda-tile that we rely on."""

from tilewright.languages.cutile.cutile import CuTile

LANGUAGE = CuTile()
