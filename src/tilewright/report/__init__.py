"""`tilewright report`: the evidence of a run, as Markdown and as one HTML page with its charts."""
