"""Faults that are nobody's kill: a full disk, damaged files, wrong clocks. One case each, for `scripts/bench chaos`."""

import argparse

from scripts.benchmarks.table import Row


def rows(case: str, options: argparse.Namespace) -> list[Row]:
    """The rows of `disk-full`, `damage` or `clocks`. `options`: `quick`, `rounds` (None: as many as fit) and `seed`."""
    if case == "disk-full":
        from scripts.benchmarks.chaos_disk import disk_rows

        return disk_rows(options)
    if case == "damage":
        from scripts.benchmarks.chaos_damage import damage_rows

        return damage_rows(options)
    if case == "clocks":
        from scripts.benchmarks.chaos_clocks import clock_rows

        return clock_rows(options)
    raise ValueError(case)
