"""Gives each turn a verdict: a reward and a hint, derived from the next state of the turn."""
