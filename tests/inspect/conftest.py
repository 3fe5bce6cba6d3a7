from tests.inspect.example_run import run

__all__ = ["run"]
