"""The training loop: which turns a step uses, which turns were trained, and from which version training continues."""
