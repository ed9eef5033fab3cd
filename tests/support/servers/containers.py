"""Whether Docker runs here, for the tests that start containers."""

import gc
import warnings
from functools import cache


@cache
def no_docker() -> str | None:
    """Return why no container can be started here; None: Docker runs."""
    import docker  # only tests with containers wait for it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its socket open when there is no engine
        try:
            client = docker.from_env(timeout=5)
            client.ping()
            client.close()
        except docker.errors.DockerException:
            return "no Docker engine runs here; the same test runs against a local process"
        finally:
            gc.collect()
    return None
