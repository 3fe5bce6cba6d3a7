"""Reads a run directory for people: sessions, turns, policies, health, and why a turn was trained as it was."""
