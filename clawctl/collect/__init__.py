"""Turns captures into turns: assembles conversations and gives each turn its parent and its next state."""
