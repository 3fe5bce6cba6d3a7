"""Trainers on remote machines: services with Tinker's protocol."""
