"""What gets a model and runs none: named models, wheels, GGUF files, loading, text."""
