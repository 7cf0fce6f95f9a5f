"""The worker process: its messages, the session that restarts it, and the client that sends it steps."""
