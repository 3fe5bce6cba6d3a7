"""Measures published versions on suites. The gate decides whether a version goes live."""
