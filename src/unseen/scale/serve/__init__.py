"""The service on Ray Serve: many gateways and encoders, one writer per stream.

    clients ── HTTP ──> Gateway (any number) ──> Writer of the stream (one actor) ── journal on disk
                          │   └── images ──> EncoderReplica (any number, one encoder each)
                          └── create, list, delete ──> Directory (one actor)

A writer is the app of `unseen.serve` over one stream: the same routes, journal and snapshots. When its process or node
dies, Ray starts it again wherever the data folder can be reached, and it replays its journal before it answers. Every
`observe` carries an idempotency key, the caller's or one made here, so that a call repeated after a crash teaches once.
A lock file in the stream's folder keeps a writer that was only thought dead from writing beside its successor.
"""
