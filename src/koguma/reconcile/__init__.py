"""Writers that act by themselves: each keeps one sort of stored object as the mesh is.

None leads. What is written is written by compare-and-swap over the revision on which it was decided, by
whichever control plane gets there first.
"""
