"""The built-in engine: transformers with continuous batching."""
