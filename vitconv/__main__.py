"""Run the command line: `python -m vitconv`, and the script `vitconv`."""

import gc
import os

# Nothing that is made while modules are loaded is garbage; looking for it would be a twentieth of a start.
gc.disable()

try:
    from vitconv.cli.main import main as _main
except KeyboardInterrupt:
    # A tenth of a second of imports, before anybody else is there to say so.
    os.write(2, b"interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    gc.freeze()
    # Headers are many small objects that stay: looking through them every 700 would take as long as reading them.
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    _main()


if __name__ == "__main__":
    main()
