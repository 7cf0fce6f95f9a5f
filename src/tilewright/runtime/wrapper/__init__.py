"""`tilewright.tuned`: functions that tune a kernel and launch it."""
