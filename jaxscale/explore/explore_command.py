"""Command `jaxscale explore`: interactive web page on the local machine."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from jaxscale.cli.arguments import (
    FitName,
    HardwareFile,
    Json,
    OptionalModel,
    Quiet,
    SequenceLength,
    Texts,
    checked_batch,
    option,
    pairs,
)
from jaxscale.cli.console import answer, idle, print_text, say, stage

if TYPE_CHECKING:
    from jaxscale.explore.page_state import PageInputs, PageState


@dataclass(frozen=True)
class ExploreCommand:
    """Open a page of sliders: step, memory, plans, sensitivities, scaling and shape of a run.

    The page is served on 127.0.0.1 until the command is interrupted. It reads the files of this
    command line and no other.
    """

    model: OptionalModel = None
    gpu: Annotated[str | None, option(metavar="ID", help="chip; see `jaxscale hardware`")] = None
    n_gpus: Annotated[int | None, option(metavar="N", help="chips")] = None
    global_batch: Annotated[str | None, option(metavar="B", help="sequences in a step, or tokens: `4M tokens`")] = None
    seq_len: SequenceLength = None
    set: Annotated[
        Texts,
        option(metavar="FIELD=VALUE", help="any other field of the page's address, as tp=8 or network=2"),
    ] = ()
    port: Annotated[int, option(metavar="PORT", help="of 127.0.0.1; any free one where left out")] = 0
    browser: Annotated[bool, option(help="open the page in a browser")] = False
    fit: FitName = "default"
    hardware: HardwareFile = None
    json: Json = False
    quiet: Quiet = False

    def run(self) -> None:
        """Serve the page until interrupted, and print the address.

        Raises:
            InputError: marimo is missing, an unknown name or field, a malformed file, or a port in use.
        """
        import secrets
        from concurrent.futures import ThreadPoolExecutor

        from jaxscale.explore.page_server import address, bound_socket, check_extra, page_application, serve

        check_extra()
        # A port in use is refused before any slow work.
        listening = bound_socket(self.port)
        state, inputs = self._opened()
        token = secrets.token_urlsafe(16)
        with ThreadPoolExecutor(1) as beside:
            # The application is built in a second thread while this thread waits for the compiler.
            application = beside.submit(page_application, token, listening.getsockname()[1])
            self._compile(state, inputs)
        url = address(listening, token, state)
        if self.json:
            answer(True, lambda: {"url": url}, tuple)
        else:
            print_text(url)
        # The address must be out before the server blocks.
        sys.stdout.flush()
        idle()
        say("press Ctrl-C to stop")
        if self.browser:
            import webbrowser

            webbrowser.open(url)
        serve(inputs, application.result(), listening)

    def _compile(self, state: "PageState", inputs: "PageInputs") -> None:
        """Compile the programs of the first view, with the errors of the initial inputs."""
        from jaxscale.explore.page_work import page_view

        stage("compiling, which takes some seconds the first time")
        # Computed now: errors of the inputs come before the page.
        _ = page_view(state, inputs).now

    def _opened(self) -> "tuple[PageState, PageInputs]":
        """Initial inputs of the page, and the files available to the page."""
        from jaxscale.explore.page_state import PageState, page_inputs, state_of
        from jaxscale.models import catalogue_model

        fields = pairs("--set", self.set)
        given = {"model": self.model, "gpu": self.gpu, "n_gpus": self.n_gpus, "seq_len": self.seq_len}
        fields |= {name: str(value) for name, value in given.items() if value is not None}
        name = fields.get("model", PageState.model)
        # A model outside the catalogue is a file of the command line.
        files = () if catalogue_model(name) is not None else (name,)
        inputs = page_inputs(files, self.fit, self.hardware)
        if self.global_batch is not None:
            length = inputs.transformer(state_of(fields)).seq_len
            fields["global_batch"] = str(checked_batch(self.global_batch, length))
        if "gpu" in fields:
            fields["gpu"] = inputs.hardware[fields["gpu"]].id
        return state_of(fields), inputs
