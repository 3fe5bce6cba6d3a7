"""Starts several parts together: all stages under one parent, and clients that are set up for a run."""
