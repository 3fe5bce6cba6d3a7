"""Tasks for a shell: our own, drawn by seed, or folders in Harbor's format."""
