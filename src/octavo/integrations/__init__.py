"""octavo inside other libraries: a module or package each, imported on use."""
