"""The gateway: three dialects of HTTP, limits, capture, and the version that answers."""
