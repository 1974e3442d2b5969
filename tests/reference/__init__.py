"""Plain versions of what the compiled core does, one message at a time: the judges of its tests."""
