"""In the user's program: tuned once, remembered, launched."""
