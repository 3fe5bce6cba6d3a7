"""What replaces functions of vLLM, in vLLM's interpreter. This folder is put on that interpreter's path."""
