"""Who takes part in the next step, so that pages never run out."""
