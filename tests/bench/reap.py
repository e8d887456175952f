#!/usr/bin/env python3
"""Runs a command and waits for every process that it leaves behind.

pgBackRest's asynchronous process detaches itself. Made a child of the timed command, its CPU time counts and the
clock stops only when it has ended.
"""
import ctypes
import os
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)

ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
status = subprocess.call(sys.argv[1:])
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
sys.exit(status)
