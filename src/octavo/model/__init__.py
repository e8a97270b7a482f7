"""What a model keeps: kinds of layers, the spec of a whole model, and readers of its config."""
