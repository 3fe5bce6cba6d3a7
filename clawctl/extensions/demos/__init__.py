"""Tiny models that solve some tasks of the environments, one that reads text and one that reads screenshots."""
