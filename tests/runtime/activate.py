"""Hands sockets over as a service manager does: python activate.py FD,FD,... NAMES COMMAND..."""

import fcntl
import os
import sys

from pillion.runtime.inherited_sockets import FIRST_DESCRIPTOR

FREE_FROM = 64

if __name__ == "__main__":
    # First out of the way of the numbers that the copies get.
    sources = [
        fcntl.fcntl(int(descriptor), fcntl.F_DUPFD_CLOEXEC, FREE_FROM)
        for descriptor in sys.argv[1].split(",")
    ]
    for place, source in enumerate(sources):
        os.dup2(source, FIRST_DESCRIPTOR + place)
    activation = {
        "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDS": str(len(sources)),
        "LISTEN_FDNAMES": sys.argv[2],
    }
    os.execve(sys.argv[3], sys.argv[3:], {**os.environ, **activation})
