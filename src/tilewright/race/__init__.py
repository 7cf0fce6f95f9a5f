"""The race: interleaved rounds of timed candidates, the statistics that judge them, and the rules that end it."""
