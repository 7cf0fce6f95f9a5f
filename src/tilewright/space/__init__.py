"""What to try: the space of configurations, the templates, and seeds from an analytic model.

`Space` holds the constraints; `template`, `seed` and `advise` give starting points that others tuned, and `heuristics`
asks NVIDIA's matmul model where it is installed.
"""

from tilewright.space.kinds import KINDS, Advice, Kind, advise, template_for
from tilewright.space.knobs import CLUSTER_ARCHITECTURES, HINTS
from tilewright.space.space import Space
from tilewright.space.templates import Row, seed, template

__all__ = [
    "CLUSTER_ARCHITECTURES",
    "HINTS",
    "KINDS",
    "Advice",
    "Kind",
    "Row",
    "Space",
    "advise",
    "seed",
    "template",
    "template_for",
]
