"""`jaxscale` and `python -m jaxscale`: the command line of a process, and the end of a process that is stopped."""

import contextlib
import os
import sys

from jaxscale.cli.startup import INTERRUPTED, TERMINATED


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
        code = INTERRUPTED
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        code = TERMINATED
    if code in (INTERRUPTED, TERMINATED):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # no stream, a broken pipe, a closed stream
                stream.flush()
        # JAX compiles in a thread that no signal stops; the thread crashes if libraries are unloaded meanwhile.
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(run())
