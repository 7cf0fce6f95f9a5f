"""What Tile IR says without running: accesses, token chains, accumulators, differences between versions."""
