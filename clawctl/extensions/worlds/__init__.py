"""Environments whose tasks a program grades, the sandbox and browser that they run in, and the suite `ability`."""
