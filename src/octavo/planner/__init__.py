"""What fits: from a model's spec and a budget of bytes to pages, groups and tensors."""
