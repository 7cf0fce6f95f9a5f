"""The process that touches the GPU; nothing else imports torch at its top."""
