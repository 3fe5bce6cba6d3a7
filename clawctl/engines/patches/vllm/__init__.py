"""Patches for vLLM, applied in vLLM's interpreter. This folder is on that interpreter's path."""
