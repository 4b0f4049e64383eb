"""``autotune serve``."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from autotune.commands.failures import DONE, say
from autotune.commands.inputs import Problems, number, text
from simcore.errors import ResourceError

DEFAULT_PORT = 8080


def run(values: Mapping[str, object]) -> int:
    """Serve the local page until it is interrupted."""
    problems = Problems()
    port = int(number(values, "port", problems, minimum=1, maximum=65535, whole=True)
               or DEFAULT_PORT)
    host = text(values, "host") or "127.0.0.1"
    if not _is_loopback(host) and not values.get("allow_remote"):
        problems.add("--host", f"'{host[:100]}' is reachable from other machines, and the page "
                     "needs no login", "use 127.0.0.1, or add --allow-remote")
    problems.settle()
    try:
        import nicegui  # noqa: F401
    except ImportError as error:
        raise ResourceError("serve needs a package that is not installed: "
                            "pip install 'autotune[serve]'") from error
    _free(host, port)
    from autotune.serving.app import serve

    say(f"http://{host}:{port} (Ctrl-C stops it)")
    serve(host, port, allow_hosts=("*",) if values.get("allow_remote") else ())
    return DONE


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _free(host: str, port: int) -> None:
    """Say in words that an address cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ResourceError(f"cannot listen on {host}:{port}: {error.strerror or error}"
                            ) from error
