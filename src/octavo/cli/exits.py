"""The exit codes of the command line: one table, which the program, its tests and docs/cli.md keep.

Those from 128 on are what shells give for a program that a signal ended.
"""

EXIT_CODES = {
    0: "done; from `octavo doctor`: everything that is installed works",
    1: "failed: a model, a file or a package is missing or damaged, or there is too little memory; "
    "from `octavo doctor`: something that is installed is broken",
    2: "misused: a word, a setting or a value that the command does not take",
    3: "answered: what you asked `octavo plan` for does not fit, and what would be enough",
    130: "interrupted (Ctrl-C)",
    141: "nobody reads the output any more (a closed pipe)",
    143: "terminated (SIGTERM)",
}
"""What each code says."""
