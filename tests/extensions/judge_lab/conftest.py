from tests.judge.conftest import run, serving

__all__ = ["run", "serving"]
