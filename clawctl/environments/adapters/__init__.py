"""Environments of other libraries, which run unchanged: a taskset of verifiers, and a server of OpenEnv."""
