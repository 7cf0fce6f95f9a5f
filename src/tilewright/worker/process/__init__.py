"""The process that uses the GPU. Some of its modules import torch at their top. No other module of the package does,
and a task that needs no torch loads none of them.
"""
