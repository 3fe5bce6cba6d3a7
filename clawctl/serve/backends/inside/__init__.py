"""What runs beside vLLM, in its interpreter: standard library only. This folder is put on that interpreter's path."""
