"""The exit codes of the command line: one table, which the program, its tests and docs/cli.md keep.

Those from 128 on are what shells give for a program that a signal ended.
"""

EXIT_CODES = {
    0: "done; of `octavo doctor`: all that is here works",
    1: "failed: a model, a file, a memory or a package that does not do; of `octavo doctor`: "
    "something here is broken",
    2: "misused: a word, a setting or a value that the command does not take",
    3: "answered: what `octavo plan` was asked for does not fit, and what would do",
    130: "interrupted (Ctrl-C)",
    141: "nobody reads the output any more (a closed pipe)",
    143: "terminated (SIGTERM)",
}
"""What each code says."""
