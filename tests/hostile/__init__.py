"""What strangers and rude peers do to the port of the link; `make test-hostile` runs it all.

| attack | where |
| --- | --- |
| 300 idle connections without a token, at a server with 256 descriptors | test_flood |
| one `hello` of 1 GB zeros, compressed to 1 MB or as it is, with a good token | test_hello |
| 20,000 mutated and truncated frames | test_fuzz |
| apps that nobody whom a node trusts has signed | test_signed_apps |
| rounds for as long as `SOAK` says (60 seconds): memory of a server and its nodes | test_soak |

Whatever is sent stays on the loopback; every loop is bounded; every process is ended by its id.
"""
