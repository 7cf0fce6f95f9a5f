"""The space of configurations, its templates, and seeds from an analytic model."""
