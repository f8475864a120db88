"""Speed of attention targets side by side, in one process, after each answer was found right.

Life of a measurement: `cases` says what is timed, `inputs` makes it, `oracle` knows the answer, `contenders` turn a
target or a peer into a call without arguments, `runner` checks the call and then has `timing` time it, `result` is the
record, `table` and `plot` show it. `cases`, `inputs`, `oracle`, `timing` and `peers` need torch alone, so that the
scripts in benchmarks/ can run on a machine that has nothing else.
"""
