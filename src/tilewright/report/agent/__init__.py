"""The reports of a run of `agent`: about one change that the user asked for, or about several changes of autopilot."""
