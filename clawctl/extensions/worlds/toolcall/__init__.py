"""Questions with a verifiable answer, and tools to find it."""
