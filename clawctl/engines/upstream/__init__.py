"""Servers that somebody else runs, by their chat completions: vLLM, SGLang and others."""
