"""The process that uses the GPU. Only its modules import torch at their top."""
