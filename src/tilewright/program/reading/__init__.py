"""Reads the files of a user's PyTorch program without running them: names, data flow, numbers, masks, modules."""
