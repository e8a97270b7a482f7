"""One module a backend of attention, named as `octavo.attention.backend` names it."""
