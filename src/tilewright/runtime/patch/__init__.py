"""Tilewright's search in the place of `cuda.tile.tune.exhaustive_search`."""
