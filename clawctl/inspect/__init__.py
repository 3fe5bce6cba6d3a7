"""Shows a run directory to people: sessions, turns, policies, health, and the numbers behind the training of a turn."""
