"""The worker process: the messages it is sent, the session that survives its death, and the client that asks."""
