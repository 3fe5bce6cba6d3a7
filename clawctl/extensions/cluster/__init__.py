"""`clawctl up --on`: the stages as jobs of Slurm, Ray or SkyPilot."""
