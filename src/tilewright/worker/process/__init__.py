"""The process that uses the GPU. Only modules of this folder import torch at their top.

For a task that needs no torch, none of the modules that import torch is loaded.
"""
