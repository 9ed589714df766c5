"""The fabric between machines: parties dial out to the label holder's hub over mutual TLS."""

import os

# Without this, set before its import, gRPC reports every ended connection on standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
