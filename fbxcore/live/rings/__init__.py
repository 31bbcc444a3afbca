"""The rings that live buffers sample from, and the engine: one holder of a ring at a time."""
