"""Shell tasks: drawn by clawctl from a seed, or read from folders in Harbor's format."""
