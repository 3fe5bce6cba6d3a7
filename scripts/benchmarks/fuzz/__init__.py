"""Requests that nobody should send."""
