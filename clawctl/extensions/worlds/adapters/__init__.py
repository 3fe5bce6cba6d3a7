"""Adapters for other libraries' environments, which run unchanged: tasksets of verifiers, and servers of OpenEnv."""
