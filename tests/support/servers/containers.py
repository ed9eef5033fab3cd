"""Checks whether Docker runs, for tests that start containers."""

import gc
import warnings
from functools import cache


@cache
def no_docker() -> str | None:
    """Return why no container can be started, or None if Docker runs."""
    import docker  # Import here, so that only tests with containers wait until Docker's client is imported.

    with warnings.catch_warnings():
        # If Docker does not run, its client leaves a socket open and so causes this warning.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client = docker.from_env(timeout=5)
            client.ping()
            client.close()
        except docker.errors.DockerException:
            return "no Docker engine runs here; the same test runs against a local process"
        finally:
            gc.collect()
    return None
