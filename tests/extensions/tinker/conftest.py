from tests.train.fixtures import model_path, quiet, run, sampler

__all__ = ["model_path", "quiet", "run", "sampler"]
