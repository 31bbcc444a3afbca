"""What a page shows: one frozen dataclass per page, every number already text with its unit."""
