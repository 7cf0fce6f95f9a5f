"""The reports of a run of `agent`: one change that the user asked for, or several that autopilot tried."""
