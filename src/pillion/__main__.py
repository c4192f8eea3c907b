"""`python -m pillion`: the same as the `pillion` command."""

import os
import sys

# `-m` puts the working directory first on sys.path. In a checkout of this project that would let
# our kernels/ shadow the package of the same name that transformers imports.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

if __name__ == "__main__":
    from pillion.runtime.cli import main

    sys.exit(main())
