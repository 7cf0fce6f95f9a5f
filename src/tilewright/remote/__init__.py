"""Work on another machine through the user's ssh: what is brought there, the process that stays there, its client."""
