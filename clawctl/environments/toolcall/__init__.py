"""Questions with a checkable answer, and tools to find it."""
