"""The xDS protocol without I/O: what a proxy says goes in, what it is to be told comes out.

`session` is where to begin. What it knows of a proxy is one of three: `claims` of one that has come back, a
`rest`, or a `ledger` with one `channel` for each type of resource. From a ledger comes `speech`, which asks
`outlook` whether what a resource needs is there, and `departures` whether something may go. Time is an
argument everywhere, so a test reads as a script and a day takes no time.
"""
