"""Closing and opening a live buffer: all that lies on disk, and the way back to it."""
