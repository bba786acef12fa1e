"""Run the command line as `python -m vitconv`."""

from vitconv.cli.main import main

main()
