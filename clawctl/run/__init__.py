"""The run directory: its paths, rows and files. Each file is published whole; stages meet here and nowhere else."""
