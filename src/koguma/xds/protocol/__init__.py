"""The xDS protocol without I/O: what a proxy says goes in, what it is to be told comes out.

`session` is where to begin. It keeps one `channel` for each type of resource, asks `outlook` whether what a
resource needs is there, and `departures` whether something may go. Time is an argument everywhere, so a test
reads as a script and a day takes no time.
"""
