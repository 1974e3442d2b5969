"""The calls of an open store, by what they are about; `kvstore.store` puts them together.

The idea: each module holds the calls of one subject as a class with no state of its own; it names
the parts it hands them to, which the store wires. A call checks that the store is in a state to do
it, turns names into what the parts use, and leaves the work to a part.
"""
