"""What the kinds of places that keep archives have in common, and the local kind."""
