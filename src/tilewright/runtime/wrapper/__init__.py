"""`tilewright.tuned`: declare a kernel once, call it."""
