"""`python -m handoff_graph` is the `handoff` command."""

from handoff_graph.cli import main

main()
