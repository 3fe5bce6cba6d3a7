"""The gateway: API dialects over HTTP, limits, capture, and the version that answers."""
