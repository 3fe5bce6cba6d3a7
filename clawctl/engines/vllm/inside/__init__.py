"""Code that runs in vLLM's interpreter, with the standard library only. This folder is put on that interpreter's path."""
