"""The canary: a target that is broken on purpose, so that continuous integration proves that failures are reported."""

from fuzz.faults import all_faults

Canary = all_faults()["leak-tail"].make
