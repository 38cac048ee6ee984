"""Faults that a run must survive; `make test-faults` runs it all, after `make test`.

| fault | where |
| --- | --- |
| a ClientApp is killed in the midst of a step; a SuperNode is killed between rounds | test_killed |
| a ClientApp is frozen for longer than the deadline, and resumes | test_killed |
| the ServerApp is killed, and its run resumed | test_killed |
| a process is stopped or killed between checkpoints | test_stopped |
| a simulation's host or machine dies; `flwr stop`; the run is resumed | test_interruptions |
| a node of a Ray cluster is lost | test_ray_cluster |
| the disk fills up | test_full_disk |
| the link's port cannot be reached; the network drops; every byte takes 300 ms | test_network |
| strangers at the port of a run: no token, others' tokens, 2 GB announced, noise | test_strangers |
| 10,000 mutated and truncated frames, at either end | test_damaged_frames |
| NaN, a wrong shape, another dtype, too many patches, patches that are not its own | test_uploads |
| peers of a link in processes of their own, killed and frozen | test_peer_processes |

Quick ones, which need no process of their own, are among the link's tests: tokens of every kind in
tests/links/stream/test_peers, a peer that never reads in test_awaited_peers, broken connections in
test_network, damaged bytes in tests/links/frames/test_not_frames. Floods and soaks are in
tests/hostile.
"""
