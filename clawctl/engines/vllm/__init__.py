"""vLLM as a child process."""
