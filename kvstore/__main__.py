"""Makes `python -m kvstore` the same as the `kvmq` command."""

from kvstore.cli import main

main()
