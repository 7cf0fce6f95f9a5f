"""The rules that find what prevents a capture, or makes a replay compute something else."""
