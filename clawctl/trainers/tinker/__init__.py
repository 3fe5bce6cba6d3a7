"""Trainers on other people's machines: services that speak Tinker's protocol."""
