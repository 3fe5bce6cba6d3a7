"""External servers (vLLM, SGLang and others), used through their chat completions API."""
