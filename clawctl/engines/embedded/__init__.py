"""The engine that clawctl brings along: transformers with continuous batching."""
