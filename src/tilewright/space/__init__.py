"""The space of configurations, templates for it, and additional configurations (seeds) from an analytic model."""
