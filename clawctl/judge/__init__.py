"""Turns become verdicts: a reward and a hint from what came back after each turn."""
