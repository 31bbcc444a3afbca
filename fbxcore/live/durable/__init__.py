"""The durable half of a live buffer or vault: its log, what the log remembers, and how it becomes a vault."""
