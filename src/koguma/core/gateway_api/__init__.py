"""Gateway API: how its objects become ours, and what their statuses say.

Everything here is a pure question about stored objects. `derivation` sets what they give as inputs of the
engine beside the stored objects.
"""
