"""`jaxscale` and `python -m jaxscale`: the command line of a process, and the end of a process that is stopped."""

import contextlib
import os
import signal
import sys

STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of commands that a signal has stopped, by the convention of shells."""


def run() -> int:
    """Run the command line of the process.

    Returns:
        Exit code.
    """
    try:
        from jaxscale.cli.main import main

        code = main()
    except KeyboardInterrupt:  # while the modules load
        sys.stderr.write("jaxscale: interrupted\n")
        code = STOPPED[0]
    except SystemExit as end:
        if end.code not in STOPPED:
            raise
        code = int(end.code)
    if code in STOPPED:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # no stream, a broken pipe, a closed stream
                stream.flush()
        # JAX compiles in a thread that no signal stops; the thread crashes if libraries are unloaded meanwhile.
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(run())
