"""What to try: the space of configurations, the templates, and seeds from an analytic model."""
