"""A federation without a server: each site is one agent, and exchanges rows with its neighbours over encrypted links.

There is no rendezvous server, and no process sees more than its neighbours' vectors. A site that does not answer in
time is left out of a round, as in `proxdasa.conditions`: the weight of a missing link goes back to both of its ends.
"""
