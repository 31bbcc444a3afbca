"""What callers ask of a live buffer: checked, let in or kept waiting, answered."""
