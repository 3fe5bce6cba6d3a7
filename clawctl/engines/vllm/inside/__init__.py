"""Code that runs in vLLM's interpreter, at its plugin points and with the standard library only.

It replaces no vLLM code; patches are in `clawctl/engines/patches/vllm/`. Both folders are on that interpreter's path.
"""
