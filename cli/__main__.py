"""``python -m cli``: what the script ``duly`` runs."""

import sys

from cli.app import main

if __name__ == "__main__":
    main(sys.argv[1:])
