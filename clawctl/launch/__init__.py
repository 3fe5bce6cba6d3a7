"""Starts several components together: all stages under one parent, jobs in a scheduler, and clients configured for a run."""
