"""The training loop: which turns a step takes, what was trained, and which version training continues from."""
