"""The process: its forks, and the threads of a store.

Begin with `background`. May import errors and the clock.
"""
