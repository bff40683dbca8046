"""Runs the command line: `python -m fairlot_client`."""

from fairlot_client.cli.main import main

main()
