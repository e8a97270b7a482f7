"""Where octavo meets other libraries: one package or file each."""
