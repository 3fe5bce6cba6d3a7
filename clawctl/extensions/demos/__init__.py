"""Toy worlds of simulated people, and the tiny models that talk with them, judge them and play the environments' easiest tasks."""
