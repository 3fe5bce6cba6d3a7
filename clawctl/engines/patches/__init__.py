"""Patches that replace functions of other libraries at run time."""
