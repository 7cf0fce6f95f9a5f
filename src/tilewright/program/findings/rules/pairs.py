"""See `products`."""

from tilewright.program.findings.rules.products import ReducedBroadcasts

RULE = ReducedBroadcasts()
