"""The run directory: its paths, rows and files. Each file is published whole. Stages exchange data only through it."""
