"""Web server of the page, restricted to browsers of the local machine with the access token."""

import importlib
import importlib.util
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from jaxscale.base.errors import InputError, reason_of
from jaxscale.explore.page_state import PageInputs, PageState, changes, serve_inputs

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost")
"""Host names accepted in requests of a local browser."""

TOKEN = "access_token"
"""Field of an address in which marimo expects the token."""

Scope = MutableMapping[str, Any]
Channel = Callable[..., Awaitable[Any]]
Application = Callable[[Scope, Channel, Channel], Awaitable[None]]


def check_extra() -> None:
    """Check that the extra `explore` is installed.

    Raises:
        InputError: the extra is missing; the message has the command for the installation.
    """
    for name in ("marimo", "uvicorn", "zmq", "altair"):
        if importlib.util.find_spec(name) is None:
            raise InputError(f'explore needs {name}, which is not installed: pip install "jaxscale[explore]"')


def bound_socket(port: int) -> socket.socket:
    """Listening socket on the local machine.

    Args:
        port: requested port; 0 for a free port [1].

    Raises:
        InputError: the port is in use or not allowed.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port = {port} is out of range; expected a number from 0, any free one, to 65535")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # The port of a closed page is free at once.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((ADDRESS, port))
        listening.listen()  # a browser may knock as soon as the address is told, before the server answers
    except OSError as error:
        listening.close()
        raise InputError(f"--port = {port}: {reason_of(error)}; expected a free port, or 0 for any") from None
    return listening


def address(listening: socket.socket, token: str, state: PageState) -> str:
    """URL of the page with the given inputs and the access token.

    Args:
        state: initial inputs of the page.
    """
    query = urlencode({TOKEN: token, **changes(state)})
    return f"http://{ADDRESS}:{listening.getsockname()[1]}/?{query}"


def page_application(token: str, port: int) -> Application:
    """Page as an ASGI application that requires the access token.

    Args:
        token: secret in the page's address, unknown to further users of the machine.
        port: port of the page, which separates the cookies of several pages [1].
    """
    marimo = importlib.import_module("marimo")
    # Loaded before the first request.
    for name in ("page_controls", "page_charts"):
        importlib.import_module(f"jaxscale.explore.{name}")
    page = str(Path(__file__).with_name("page.py"))
    pages = marimo.create_asgi_app(quiet=True, include_code=False, token=token).with_app(path="", root=page).build()
    for mounted in pages.routes:
        mounted.app.state.port = port  # cookies are sent to every port of a machine; marimo names its own by the port
    return of_this_machine(pages)


def serve(inputs: PageInputs, application: Application, listening: socket.socket) -> None:
    """Serve the page until the process is interrupted.

    Args:
        inputs: catalogues, fit and files.
    """
    uvicorn = importlib.import_module("uvicorn")
    serve_inputs(inputs)
    uvicorn.Server(uvicorn.Config(application, log_level="warning")).run(sockets=[listening])


def of_this_machine(application: Application) -> Application:
    """ASGI application restricted to browsers of the local machine and to pages of this server.

    Pages of other sites in a local browser can neither read a response nor open a websocket, because the site's name
    appears in the headers `Host` or `Origin`.
    """

    async def guarded(scope: Scope, receive: Channel, send: Channel) -> None:
        if scope["type"] in ("http", "websocket") and not is_local(scope):
            await refuse(scope["type"], send)
            return
        await application(scope, receive, send)

    return guarded


def is_local(scope: Scope) -> bool:
    """Whether a request comes from the local machine and from a page of this server."""
    client = scope.get("client")
    if client is None or not ipaddress.ip_address(client[0]).is_loopback:
        return False
    # HTTP headers are Latin-1.
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    host, origin = headers.get("host", ""), headers.get("origin")
    # A foreign name may resolve to the local machine.
    if urlsplit(f"//{host}").hostname not in NAMES:
        return False
    # A page of a different site names the site as origin.
    return origin is None or urlsplit(origin).netloc == host


async def refuse(kind: str, send: Channel) -> None:
    """Answer 403 to a request, or close a channel before it opens."""
    if kind == "websocket":
        # 1008: policy violation
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"this page answers its own machine alone\n"})
