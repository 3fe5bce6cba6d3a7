"""Answers in a requested form: the tokens that a grammar allows next."""
