"""A federation between machines: parties dial out to the label holder's hub over mutual TLS."""

import os

# gRPC writes every connection that ends to standard error, unless told otherwise before its import.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
