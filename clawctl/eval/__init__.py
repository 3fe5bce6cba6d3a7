"""Measures a published version on suites, and the gate decides whether it goes live."""
