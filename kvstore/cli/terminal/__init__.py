"""Terminal: how verbs open stores and show results; each verb uses it."""
